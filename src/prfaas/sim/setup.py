"""What is simulated: clusters, links and costs in plain values, however they were described.

It knows counts and functions of length; it does not know files or plans (`fromplan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.costs import PrefillNs
from prfaas.sim.prefixes import CacheSetup


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """`prefill`: its prefill nodes. A PD cluster has decode nodes too, `batch` sequences and `memory` bytes of KV each
    (None: no bound), and gets the part `share` of all requests."""

    name: str
    prefill: int
    prefill_ns: PrefillNs
    decode: int = 0
    batch: int = 1
    memory: int | None = None
    step_ns: Callable[[int, int], int] = field(default=lambda batch, context: 1)
    flat_step_ns: int | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkSetup:
    """From a PrfaaS cluster to a PD cluster, by number; or back, for copies of prefixes. `loss`: the part of the line
    that retransmission costs."""

    source: int
    target: int
    bps: int
    rtt_ns: int
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """All of it. `kv_bytes`: of a sequence of so many tokens. `cache`: of each cluster; None: no prefix is kept.
    `chunks`: how prefill nodes compute; None: one prompt at a time, whole."""

    clusters: tuple[ClusterSetup, ...]
    links: tuple[LinkSetup, ...]
    kv_bytes: Callable[[int], int]
    cache: CacheSetup | None = None
    chunks: ChunkSetup | None = None

    @property
    def homes(self) -> tuple[int, ...]:
        """Numbers of the PD clusters."""
        return tuple(at for at, cluster in enumerate(self.clusters) if cluster.decode)
