"""Where it stops paying, and how sure that is: break-even points and sensitivity, all exact.

It knows how to ask the same question of a changed site; it does not know files or words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log

from prfaas.core.throughput.search import Search, Shape
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Splits
from prfaas.plan.grown import grown
from prfaas.plan.inputs import Inputs

NARROWEST_BPS, WIDEST_BPS = 1e4, 1e17
"""Of all links together: none, and more than anyone has."""
MOST_HITS = 0.96


@dataclass(frozen=True, slots=True)
class Answer:
    """What a changed site gives: rates of the threshold design and of the homogeneous one, and the former's shape."""

    prfaas: float
    homogeneous: float
    threshold: int
    n_p: tuple[int, ...]
    n_d: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """How many times the homogeneous design's rate."""
        return self.prfaas / self.homogeneous


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Where PrfaaS stops paying against as many homogeneous nodes. None: it does not stop, or never pays.

    `binds_bps`: all links together, below which they are the limit; `bandwidth_bps`: below which the rate is no better.
    `hits`: share of the
    tokens that are computed now which a cache would have to save.
    """

    binds_bps: float | None
    bandwidth_bps: float | None
    hits: float | None


class Margins:
    """Changed sites of the same inputs, over the same bins as `site`, theirs; what a cache saves changes every length
    and time, so that alone is asked over fewer bins. `budget` and `costs` say what homogeneous nodes may replace (see
    `grown`)."""

    def __init__(self, inputs: Inputs, site: Site, budget: float, costs: Sequence[float]) -> None:
        self.inputs, self.site = inputs, site
        self.budget, self.costs = budget, costs
        self.splits = Splits(self.site, "exact")
        self._last: Search | None = None
        self.links_bps = sum(bps for home in self.site.homes for bps in home.links_bps)

    def of(self, site: Site, splits: Splits | None = None) -> Answer:
        """The answer for another site. `splits`: those of its tables, when they are known."""
        splits = splits or Splits(site, "exact")
        shape = self._best(site, splits)
        alone = site.alone(grown(site, splits, self.budget, self.costs))
        same = Search(alone, splits.alone()).with_cut(len(site.lengths))
        n_d = tuple(home.nodes - n for home, n in zip(site.homes, shape.n_p, strict=True))
        return Answer(shape.rate, same.rate, site.lengths.threshold(shape.cut), shape.n_p, n_d)

    def with_bandwidth(self, bps: float) -> Answer:
        """With all links together so wide, in the same proportions."""
        return self.of(self.site.with_links(bps / self.links_bps), self.splits)

    def with_output(self, tokens: int) -> Answer:
        """With answers so long."""
        return self.of(self.site.with_output(tokens / self.inputs.workload.output), self.splits)

    def with_hits(self, share: float) -> Answer:
        """With this share of what is computed now found in a cache instead."""
        coarse = self.coarse
        return self.of(coarse.site(coarse.workload.with_hits(share)))

    @cached_property
    def coarse(self) -> Inputs:
        """With fewer bins."""
        return self.inputs.coarse()

    def break_even(self) -> BreakEven:
        """All break-even points."""
        now = self.of(self.site, self.splits)
        wide = self._rate(WIDEST_BPS)
        binds = _falls_below(self._rate, wide * (1 - 1e-3))
        pays = _falls_below(self._rate, now.homogeneous) if wide > now.homogeneous else None
        return BreakEven(
            binds,
            pays,
            self._hits(),
        )

    def _rate(self, bps: float) -> float:
        return self._best(self.site.with_links(bps / self.links_bps), self.splits).rate

    def _best(self, site: Site, splits: Splits) -> Shape:
        self._last = Search(site, splits, self._last)
        return self._last.best()

    def _hits(self) -> float | None:
        """The first share at which it pays no more: whole nodes make the ratio jump, so it is looked for in steps."""
        if self.with_hits(0.0).ratio <= 1:
            return None
        step, before = 0.04, 0.0
        while before < MOST_HITS - 1e-9:
            share = min(before + step, MOST_HITS)
            if self.with_hits(share).ratio <= 1 + 1e-9:
                low, high = before, share
                for _ in range(7):
                    middle = (low + high) / 2
                    low, high = (middle, high) if self.with_hits(middle).ratio > 1 + 1e-9 else (low, middle)
                return high
            before = share
        return None


def _falls_below(rate: Callable[[float], float], least: float) -> float | None:
    """The bandwidth at which `rate`, which never falls as it grows, comes up to `least`. None: it does at any."""
    if rate(NARROWEST_BPS) >= least:
        return None
    low, high = log(NARROWEST_BPS), log(WIDEST_BPS)
    while high - low > 5e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if rate(exp(middle)) >= least else (middle, high)
    return exp(high)
