"""Which of the nodes that may go was used longest ago.

It knows ages; it does not know what goes with a node. One entry a node, written when the node may go and not when it
is used: an entry that turns out older than its node is put back at its node's age, so that using a node costs nothing
here.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from prfaas.core.cache.runs import Node

SPARE = 64
"""Entries of nodes that are gone that are let be, so that sweeping them out is rare."""


class Ages:
    """Nodes that may go, least recently used first. `may_go`: whether a node still may; asked when its turn comes."""

    __slots__ = ("_heap", "_may_go")

    def __init__(self, may_go: Callable[[Node], bool]) -> None:
        self._may_go = may_go
        self._heap: list[tuple[int, int, Node]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, node: Node) -> None:
        """`node` may go from now on; it may be added already, and be older now than it was then."""
        if node.queued is None or node.used < node.queued:
            node.queued = node.used
            heappush(self._heap, (node.used, node.serial, node))

    def oldest(self) -> Node | None:
        """The least recently used node that may go; it stays. None where there is none."""
        heap = self._heap
        while heap:
            used, serial, node = heap[0]
            if used != node.queued:
                heappop(heap)
            elif not self._may_go(node):
                heappop(heap)
                node.queued = None
            elif node.used != used:
                node.queued = node.used
                heapreplace(heap, (node.used, serial, node))
            else:
                return node
        return None

    def sweep(self, nodes: int) -> None:
        """Drops entries of nodes that may not go, when there are far more than the `nodes` that there are."""
        if len(self._heap) <= 2 * nodes + SPARE:
            return
        kept = []
        for used, serial, node in self._heap:
            if used != node.queued:
                continue
            if self._may_go(node):
                kept.append((used, serial, node))
            else:
                node.queued = None
        heapify(kept)
        self._heap = kept
