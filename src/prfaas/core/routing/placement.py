"""Which cluster prefills and which node decodes: pure choices over the view, each with its reason.

It knows the view, the threshold and what is cached; it does not know requests' lives (see `router`).
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from prfaas.core.ids import ClusterName, NodeName
from prfaas.core.routing.cached import Cached
from prfaas.core.routing.copying import Copy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Source, View

NONE_HELD: Mapping[NodeName, int] = {}


@dataclass(frozen=True, slots=True)
class Choice:
    """Where prefill goes (None: the decode node does all of it itself), and why, in one word."""

    source: Source | None
    reason: str
    unknown: tuple[str, ...] = ()
    """Signals that were lacking, see `Ledger.unknown`."""
    scores: tuple[float, ...] = ()
    """What each weighed option was worth, smaller is better; see `policy.Answer`."""
    copy: Copy | None = None
    """What becomes of a longer prefix elsewhere, if there is one."""


def choose_source(
    view: View,
    threshold: Threshold,
    tokens: int,
    failed: AbstractSet[ClusterName],
    stays: str,
    why: str = "retry",
    cached: int = 0,
) -> Choice:
    """Where to prefill a prompt of `tokens` tokens, of which the last is never transferred, and `cached` are cached at
    home.

    `failed`: clusters that already failed this request. `stays`: why the request must be computed whole on the decode
    node, if it must (`echo`). Reasons: `long`, `short`, `unreachable` (long, but no PrfaaS cluster can take it),
    `why` (one failed it before), `single` (one token: nothing to transfer), `no_prefill_node` (there are some
    at home, none can take it).
    """
    if stays:
        return Choice(None, stays)
    if tokens <= 1:
        return Choice(None, "single")
    reason = why if failed else "short"
    if threshold.offloads(tokens, cached):
        remote = [s for s in view.sources if not s.home and s.cluster not in failed and view.ready(s, tokens)]
        if remote:
            return Choice(min(remote, key=lambda s: _crowd(view, s)), why if failed else "long")
        reason = why if failed else "unreachable"
    home = [s for s in view.sources if s.home and s.cluster not in failed and view.ready(s, tokens)]
    if home:
        return Choice(home[0], why if failed else reason)
    return Choice(None, reason if failed or view.decodes_only else "no_prefill_node")


def choose_decoder(
    view: View, tokens: int, failed: AbstractSet[NodeName], held: Mapping[NodeName, int] = NONE_HELD
) -> NodeName | None:
    """The ready decode node with the fewest requests of ours, then of all; among equals the one that `held` most of the
    prompt's prefix, then by name; None when there is none."""
    ready = [d for d in view.decoders.values() if d.ready and d.node not in failed and tokens <= d.max_tokens]
    if not ready:
        return None
    return min(ready, key=lambda d: (view.assigned.get(d.node, 0), d.running, -held.get(d.node, 0), d.node)).node


def choose_holder(
    view: View,
    tokens: int,
    remainder: int,
    cached: Cached,
    clusters: AbstractSet[ClusterName],
    nodes: AbstractSet[NodeName],
) -> NodeName | None:
    """The decode node that holds all of a prompt of `tokens` tokens but a short rest, and may so compute it whole; None
    when there is none.

    The rest is at most `remainder` tokens, at most what it holds, and at most what any cluster that can prefill would
    have to compute: so nobody has less to do, and nothing is handed over. What it decodes waits for it meanwhile, so a
    node that has more than a quarter more to do than the least busy one is not chosen. `clusters` and `nodes` failed
    this request before.
    """
    rest = {node: tokens - min(held, tokens - 1) for node, held in cached.decoders.items()}
    most = min(remainder, tokens // 2)
    for source in view.sources:
        if source.cluster not in clusters and view.ready(source, tokens):
            most = min(most, tokens - cached.at(source.cluster, tokens))
    if not any(left <= most for left in rest.values()):
        return None
    ready = [d for d in view.decoders.values() if d.ready and d.node not in nodes and tokens <= d.max_tokens]
    loads = {d.node: max(d.running, view.assigned.get(d.node, 0)) for d in ready}
    least = min(loads.values(), default=0)
    able = [node for node, load in loads.items() if rest.get(node, tokens) <= most and 4 * load <= 5 * least]
    return min(able, key=lambda node: (rest[node], loads[node], node), default=None)


def _crowd(view: View, source: Source) -> tuple[float, str]:
    """A node's share of what the cluster has to do: as it reported, or what we sent, if that is more by now."""
    seen = view.seen[source.cluster]
    return (max(seen.waiting + seen.running, view.sent.get(source.cluster, 0)) / seen.ready, source.cluster)
