"""Where a chain leaves what is stored, by short cuts: the answer before, and where requests before ended.

It knows runs and chains; it does not know requests, room or age. Nobody has to tell it which nodes have gone, grown or
were shortened: that is found out when one is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.cache.runs import Node, follow

Found = tuple[Node, int, Node]
"""See `follow`."""
BACK = 16
"""Blocks before the end of a chain in which the end of a request before is looked for."""
SPARE = 64
"""Ends of nodes that are gone that are let be, so that sweeping them out is rare."""


class Finder:
    """`last`: chain, limit and answer of the last question, None once anything has changed."""

    __slots__ = ("_ends", "_root", "last")

    def __init__(self, root: Node) -> None:
        self._root = root
        self._ends: dict[int, Node] = {}
        self.last: tuple[Sequence[int], int, Found] | None = None

    def __len__(self) -> int:
        return len(self._ends)

    def found(self, chain: Sequence[int], limit: int) -> Found:
        """`follow` from the root. Who asks what is there mostly begins next, or asks again. Only a tuple is known to be
        the same again."""
        last = self.last
        if last is not None and last[0] is chain and last[1] == limit:
            return last[2]
        start = self._near(chain, limit)
        if start is None:
            found = follow(self._root, chain, limit)
        else:
            found = follow(start, chain, limit)
            if found[2] is start and not start.state:
                resume = start
                while not resume.state and resume.parent is not None:
                    resume = resume.parent
                found = (found[0], found[1], resume)
        if type(chain) is tuple:
            self.last = (chain, limit, found)
        return found

    def remember(self, node: Node, nodes: int) -> None:
        """`node` is the end of a request's prefix; there are `nodes` in all."""
        if node.parent is None:
            return
        ends = self._ends
        ends[node.ids[-1]] = node
        if len(ends) > 2 * nodes + SPARE:
            self._ends = {end: one for end, one in ends.items() if one.parent is not None and one.ids[-1] == end}

    def _near(self, chain: Sequence[int], limit: int) -> Node | None:
        """Where a request before ended, not far before the end of `chain`: a conversation goes on there, and its path
        has a node for every turn. Equal ids at equal positions mean equal prefixes, so the walk may begin there."""
        ends = self._ends
        for depth in range(limit, limit - BACK if limit > BACK else 0, -1):
            block = chain[depth - 1]
            node = ends.get(block)
            if node is not None and node.stop == depth and node.parent is not None and node.ids[-1] == block:
                return node
        return None
