"""What of a prompt is cached where: the index, asked for one gateway's decisions.

It knows the index of all clusters and which nodes decode; it does not know how the index is kept up, nor policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.ids import ClusterName, NodeName
from prfaas.core.index.answer import BLOCK_TOKENS
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.view import View


class Caches:
    """Of the clusters of `view`. `root`: what the hashes of a prompt begin with, see `model.blockhash`."""

    def __init__(self, index: PrefixIndex, root: int, view: View) -> None:
        self.root = root
        self._index, self._view = index, view
        (self._home,) = (source.cluster for source in view.sources if source.home)

    def of(self, chain: Sequence[int]) -> Cached:
        """The answer for a prompt whose blocks have these hashes, without its last token."""
        if not chain:
            return NOTHING
        answer, decode = self._index.usable(chain), self._view.decoders
        clusters: dict[ClusterName, int] = {}
        holders: dict[ClusterName, tuple[NodeName, ...]] = {}
        decoders: dict[NodeName, list[int]] = {}
        dense: dict[NodeName, list[int]] = {}
        for place, tokens, rows, _ in answer.held:
            if place.cluster == self._home and place.node in decode:
                decoders.setdefault(place.node, []).append(tokens)
                dense.setdefault(place.node, []).append(rows)
            if not tokens or not self._prefills(place) or tokens < clusters.get(place.cluster, 0):
                continue
            same = holders[place.cluster] if tokens == clusters.get(place.cluster) else ()
            clusters[place.cluster], holders[place.cluster] = tokens, (*same, place.node)
        wholly: dict[ClusterName, bool] = {}
        ranks: dict[NodeName, int] = {}
        for place, (_, known) in self._index.places().items():
            if place.node in decoders:
                ranks[place.node] = ranks.get(place.node, 0) + 1
            if self._prefills(place):
                wholly[place.cluster] = known is Known.WHOLLY and wholly.get(place.cluster, True)
        names = [source.cluster for source in self._view.sources]
        unknown = tuple(name for name in names if not wholly.get(name))
        worth = {name: nodes for name, nodes in holders.items() if 2 * clusters[name] >= len(chain) * BLOCK_TOKENS}
        # A node of several ranks gives a request to any of them.
        resumed, kept = (
            {node: min(lengths) for node, lengths in by_node.items() if len(lengths) == ranks[node]}
            for by_node in (decoders, dense)
        )
        lenders = {name: min(nodes) for name, nodes in holders.items()}
        return Cached(clusters, worth, resumed, unknown, lenders, kept)

    def _prefills(self, place: Place) -> bool:
        """Whether a prefill in its cluster would find what is there: decode nodes prefill only where they are alone."""
        if place.cluster != self._home:
            return True
        return (place.node in self._view.decoders) == self._view.decodes_only
