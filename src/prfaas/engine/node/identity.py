"""Who a node is and what it takes in: plain values from the topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.transport.base import Peer


@dataclass(frozen=True, slots=True)
class Identity:
    """`model`: its name to clients. `epoch`: this incarnation. `data`: where receivers dial, one address a rank."""

    name: NodeName
    cluster: ClusterName
    role: Literal["prefill", "decode"]
    epoch: Epoch
    model: str
    data: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """`deadline_ns` holds when a request brings none; `transfer_lease_ns`: patience with a silent receiver.

    `kv_memory_bytes`: what KV blocks may take, None when the engine's own limits say it all. `prefix_cache`: keep
    prefixes in what of it is free.
    """

    max_body_bytes: int = 16 << 20
    landing_buffer_bytes: int = 1 << 30
    queue_length: int = 256
    deadline_ns: int = 600 * 10**9
    transfer_lease_ns: int = 15 * 10**9
    kv_memory_bytes: int | None = None
    prefix_cache: bool = True
