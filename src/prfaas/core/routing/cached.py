"""What is cached of one prompt, as a decision sees it.

It knows lengths by cluster and node; it does not know hashes, nor how any of it is found out.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from prfaas.core.ids import ClusterName, NodeName


@dataclass(frozen=True, slots=True)
class Cached:
    """Tokens from the prompt's start that need not be computed again.

    `clusters`: by cluster, on the best of the nodes that would prefill there; `holders`: which nodes those are.
    `decoders`: by decode node of our own cluster; `rows`: what need not cross to one in a hand-over, which may be more
    where computing can go on from some lengths only. `unknown`: clusters of which more may be cached than is said.
    `lenders`: by cluster, a node that holds so much.
    """

    clusters: Mapping[ClusterName, int] = field(default_factory=dict)
    holders: Mapping[ClusterName, tuple[NodeName, ...]] = field(default_factory=dict)
    decoders: Mapping[NodeName, int] = field(default_factory=dict)
    unknown: tuple[ClusterName, ...] = ()
    lenders: Mapping[ClusterName, NodeName] = field(default_factory=dict)
    rows: Mapping[NodeName, int] = field(default_factory=dict)

    def at(self, cluster: ClusterName, tokens: int) -> int:
        """Of a prompt of `tokens` tokens, of which the last one is always computed."""
        return min(self.clusters.get(cluster, 0), tokens - 1)

    def without(self, clusters: AbstractSet[ClusterName]) -> Cached:
        """The same, as if nothing were cached in these."""
        if not clusters:
            return self
        kept = {cluster: tokens for cluster, tokens in self.clusters.items() if cluster not in clusters}
        return replace(self, clusters=kept)


NOTHING = Cached()
