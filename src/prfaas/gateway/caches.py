"""What of a prompt is cached where: the index, asked for one gateway's decisions.

It knows the index of all clusters and which nodes decode; it does not know how the index is kept up, nor policies.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.ids import ClusterName, NodeName
from prfaas.core.index.answer import BLOCK_TOKENS
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Place
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
        decoders: dict[NodeName, int] = {}
        for place, tokens, _, _ in answer.held:
            if place.cluster == self._home and place.node in decode:
                decoders[place.node] = max(tokens, decoders.get(place.node, 0))
            if not tokens or not self._prefills(place) or tokens < clusters.get(place.cluster, 0):
                continue
            same = holders[place.cluster] if tokens == clusters.get(place.cluster) else ()
            clusters[place.cluster], holders[place.cluster] = tokens, (*same, place.node)
        heard = {place.cluster for place in self._index.places() if self._prefills(place)}
        doubtful = {place.cluster for place in answer.unknown if self._prefills(place)}
        names = [source.cluster for source in self._view.sources]
        unknown = tuple(name for name in names if name not in heard or name in doubtful)
        worth = {name: nodes for name, nodes in holders.items() if 2 * clusters[name] >= len(chain) * BLOCK_TOKENS}
        lenders = {name: min(nodes) for name, nodes in holders.items()}
        return Cached(clusters, worth, decoders, unknown, lenders)

    def _prefills(self, place: Place) -> bool:
        """Whether a prefill in its cluster would find what is there: decode nodes prefill only where they are alone."""
        if place.cluster != self._home:
            return True
        return (place.node in self._view.decoders) == self._view.decodes_only
