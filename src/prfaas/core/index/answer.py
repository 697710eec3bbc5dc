"""What the index answers about one prompt: how much of it each place can use, and from where best to copy.

It knows lengths and places; it does not know hashes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from prfaas.core.ids import ClusterName, NodeName
from prfaas.core.index.places import Known, Place

BLOCK_TOKENS = 64


class Usable(NamedTuple):
    """`tokens` of the prompt's start can be resumed at `place`; dense blocks are there for `dense_tokens` (more, where
    the model has state and no snapshot is at their end). `known`: WHOLLY, or PARTLY: it may be more."""

    place: Place
    tokens: int
    dense_tokens: int
    known: Known


class Source(NamedTuple):
    """Copy tokens [start, stop) from `place`: what the destination lacks."""

    place: Place
    start: int
    stop: int


class Answer(NamedTuple):
    """`held`: places where any of the prompt is, by number of the index; `unknown`: places of which nothing is said."""

    held: tuple[Usable, ...]
    unknown: tuple[Place, ...]

    def clusters(self) -> dict[ClusterName, int]:
        """Usable tokens by cluster: the best of its places. A cluster without any is left out."""
        best: dict[ClusterName, int] = {}
        for place, tokens, _, _ in self.held:
            if tokens > best.get(place.cluster, 0):
                best[place.cluster] = tokens
        return best

    def nodes(self, cluster: ClusterName) -> dict[NodeName, int]:
        """Usable tokens by node of `cluster`: the best of its ranks."""
        best: dict[NodeName, int] = {}
        for place, tokens, _, _ in self.held:
            if place.cluster == cluster and tokens > best.get(place.node, 0):
                best[place.node] = tokens
        return best

    def in_cluster(self, cluster: ClusterName) -> int:
        """Usable tokens in `cluster`, 0 where it holds none, or none that is known."""
        return self.clusters().get(cluster, 0)

    def tells_all_of(self, cluster: ClusterName) -> bool:
        """Whether `in_cluster` is all, not only at least so much."""
        if any(place.cluster == cluster for place in self.unknown):
            return False
        return all(found.known is Known.WHOLLY for found in self.held if found.place.cluster == cluster)

    def source(self, to: Place, *, near: Iterable[ClusterName] = ()) -> Source | None:
        """The best source of a copy to `to`: the longest usable prefix; among equals one in `to`'s own cluster, then
        one in a cluster of `near`, in that order, then the first by name. None when no place has more than `to` has.
        """
        order = {cluster: rank for rank, cluster in enumerate((to.cluster, *near))}
        own = next((found.tokens for found in self.held if found.place == to), 0)
        there = [found for found in self.held if found.place != to and found.tokens > own]
        if not there:
            return None
        best = min(there, key=lambda one: (-one.tokens, order.get(one.place.cluster, len(order)), one.place))
        return Source(best.place, own, best.tokens)
