"""Prefill nodes as the world keeps them, and prefixes on their way to one.

It knows what a node works on; it does not know what it decides next.
"""

from __future__ import annotations

from collections.abc import Callable

from prfaas.sim.flow import Flow
from prfaas.sim.request import UNSEEN, Request


class PrefillNode:
    """`end_ns`: when what runs will end; `expected_ns`: when policies expect it. `slow`: times as long. `copy`: a
    prefix that it waits for. `then`: what it leaves for, once it has ended what it works on. It has this role
    from `came_ns` until `left_ns`."""

    __slots__ = (
        "at",
        "busy_ns",
        "came_ns",
        "cluster",
        "copy",
        "end_ns",
        "expected_ns",
        "left_ns",
        "number",
        "running",
        "slow",
        "then",
        "up",
    )

    def __init__(self, cluster: int, number: int, now_ns: int) -> None:
        self.cluster = cluster
        self.number = number
        self.came_ns = now_ns
        self.left_ns = UNSEEN
        self.at = -1
        self.up = True
        self.running: Request | None = None
        self.end_ns = self.expected_ns = UNSEEN
        self.slow = 1.0
        self.busy_ns = 0
        self.copy: Flow | None = None
        self.then: Callable[[int], None] | None = None


class Copy:
    """A prefix of `length` tokens, of which `had` were there, on its way to `node`, which waits with `request` for
    it."""

    __slots__ = ("flow", "had", "length", "node", "request")

    def __init__(self, node: PrefillNode, request: Request, had: int, length: int) -> None:
        self.node = node
        self.request = request
        self.had = had
        self.length = length
        self.flow: Flow | None = None
