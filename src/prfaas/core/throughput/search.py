"""The best threshold and the best whole numbers of nodes.

It knows what a site's remotes and homes sustain at each threshold; it does not know designs' names or prices. With PD
clusters whose shares of the traffic are given, each cluster's own nodes can be chosen alone: all that joins them is the
threshold and the remotes. So for each threshold the best whole nodes have a closed form, and the search is over one
number. Exact rates are monotone in it (bisection, nothing is missed); the paper's need not be (full grid).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, inf

from prfaas.core.throughput.equations import balanced_threshold, per_share, prefill_nodes
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Split, Splits
from prfaas.core.throughput.spread import Away

COARSE = 96
"""Thresholds tried at first where each is a linear program and rates need not be monotone."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A threshold (the cut before its bin) and prefill nodes of each home, with what they sustain: requests a second of
    all lengths that the remotes, the homes' prefill and their decode allow. `rate` is the least of these."""

    cut: int
    n_p: tuple[int, ...]
    remote: float
    prefill: float
    decode: float

    @property
    def rate(self) -> float:
        """Lambda_max."""
        return min(self.remote, self.prefill, self.decode)


class Search:
    """Shapes of one site, by one kind of formulas. `like`: a search of a site that is much the same, to begin from."""

    def __init__(self, site: Site, splits: Splits, like: Search | None = None) -> None:
        self.site, self.splits = site, splits
        self.away: Away = Away(site, splits, like.away if like else None)

    def best(self) -> Shape:
        """The best shape. Where many thresholds do as well, since decode is the limit, the one with most room (eq.
        7)."""
        cut = self._best_cut(lambda at: self.local(at)[0])
        n_p = self.local(cut)[1]
        return self.with_nodes(n_p)

    def with_nodes(self, n_p: tuple[int, ...]) -> Shape:
        """The best threshold when the prefill nodes are given."""
        return self.shape(self._best_cut(lambda at: self.prefill(at, n_p)), n_p)

    def with_cut(self, cut: int) -> Shape:
        """The best whole nodes when the threshold is given."""
        return self.shape(cut, self.local(cut)[1])

    def shape(self, cut: int, n_p: tuple[int, ...]) -> Shape:
        """What this threshold and these nodes sustain."""
        homes = self.site.homes
        decode = min((home.nodes - n) * home.decode_rate / home.share for home, n in zip(homes, n_p, strict=True))
        return Shape(cut, n_p, self.away.rate(cut), self.prefill(cut, n_p), decode)

    def prefill(self, cut: int, n_p: Sequence[int]) -> float:
        """The rate of all requests that the homes' own prefill nodes allow."""
        costs = self._costs(self.splits.at(cut))
        return min(per_share(n, cost) for n, cost in zip(n_p, costs, strict=True))

    def local(self, cut: int) -> tuple[float, tuple[int, ...]]:
        """The rate of all requests that the homes allow with their best whole nodes, and these."""
        rate, n_p = inf, []
        for home, cost in zip(self.site.homes, self._costs(self.splits.at(cut)), strict=True):
            decode = home.decode_rate / home.share
            nodes = prefill_nodes(home.nodes, per_share(1, cost), decode)
            rate = min(rate, per_share(nodes, cost), (home.nodes - nodes) * decode)
            n_p.append(nodes)
        return rate, tuple(n_p)

    def _costs(self, split: Split) -> list[float]:
        """Prefill seconds of each home for one request of the whole mix."""
        return [
            home.share * ((1 - split.p) * short if home.linked else whole)
            for home, short, whole in zip(self.site.homes, split.short_s, split.whole_s, strict=True)
        ]

    def _best_cut(self, local: Callable[[int], float]) -> int:
        count = len(self.splits)
        if self.splits.formulas == "exact":
            return balanced_threshold(count, self.away.rate, local)

        def least(at: int) -> float:
            return min(self.away.rate(at), local(at))

        if self.away.closed:
            return max(range(count), key=least)
        step = max(1, count // COARSE)
        near = max(range(0, count, step), key=least)
        return max(range(max(0, near - step), min(count, near + step + 1)), key=least)


def whole_nodes(site: Site, prefill: Callable[[tuple[int, ...]], float]) -> tuple[float, tuple[int, ...]]:
    """The best rate and prefill nodes when `prefill`, of the homes' prefill nodes, never falls as one is added.

    A rate needs so many decode nodes in each home, all others prefill. As the rate rises, that changes at whole decode
    nodes only; so the best is at one of these steps, and bisection finds it.
    """
    homes = site.homes
    rates = [home.decode_rate / home.share for home in homes]
    top = min(home.nodes * rate for home, rate in zip(homes, rates, strict=True))
    steps = sorted({m * rate for home, rate in zip(homes, rates, strict=True) for m in range(1, home.nodes + 1)})
    steps = [step for step in steps if step <= top * (1 + 1e-12)]

    def nodes(at: int) -> tuple[int, ...]:
        needed = (ceil(steps[at] / rate * (1 - 1e-12)) for rate in rates)
        return tuple(home.nodes - max(1, n) for home, n in zip(homes, needed, strict=True))

    found: dict[int, float] = {}

    def allowed(at: int) -> float:
        if at not in found:
            found[at] = prefill(nodes(at))
        return found[at]

    best = balanced_threshold(len(steps), lambda at: steps[at], allowed)
    return min(steps[best], allowed(best)), nodes(best)
