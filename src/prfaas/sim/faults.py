"""What goes wrong or changes, and when: a schedule that is part of a scenario.

It knows kinds, names and times; what they do is the world's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["node_down", "service_down", "link", "slow_node", "decode_down", "to_prefill", "to_decode"]


@dataclass(frozen=True, slots=True)
class Fault:
    """From `at_ns` to `until_ns`. `cluster`: whose node, service or outgoing link it is. `node`: number of the node, of
    its role; of a role change the one that changes, and the time between the two is what it costs. `bps`: what the link
    does meanwhile, 0: down. `factor`: how many times as long the slow node takes."""

    kind: Kind
    cluster: str
    at_ns: int
    until_ns: int
    node: int = 0
    target: str = ""
    bps: int = 0
    factor: float = 1.0
