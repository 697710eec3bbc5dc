"""Which of the nodes that may go was used longest ago.

It knows ages; it does not know what goes with a node. One entry a node, written when the node may go and not when it
is used: an entry that turns out older than its node is put back at its node's age, so that using a node costs nothing
here.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace

from prfaas.core.cache.runs import Node
from prfaas.core.errors import InvariantError

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
        """`node` may go from now on; it may be added already."""
        if not node.queued:
            node.queued = True
            heappush(self._heap, (node.used, node.serial, node))

    def oldest(self) -> Node:
        """The least recently used node that may go; it stays. Raises InvariantError when there is none."""
        heap = self._heap
        while heap:
            used, serial, node = heap[0]
            if not self._may_go(node):
                heappop(heap)
                node.queued = False
            elif node.used != used:
                heapreplace(heap, (node.used, serial, node))
            else:
                return node
        raise InvariantError("no node may go, but room was promised")

    def sweep(self, nodes: int) -> None:
        """Drops entries of nodes that may not go, when there are far more than the `nodes` that there are."""
        if len(self._heap) <= 2 * nodes + SPARE:
            return
        kept = []
        for entry in self._heap:
            if self._may_go(entry[2]):
                kept.append(entry)
            else:
                entry[2].queued = False
        heapify(kept)
        self._heap = kept
