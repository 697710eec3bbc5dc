"""How long prompts are, uncached, as bins: what planner, threshold and balance integrate over.

It knows lengths and weights; it does not know where they were measured, nor what a length costs. Bin `i` holds the
lengths above `tops[i-1]`, up to and with `tops[i]`; so every top is a threshold that cuts between bins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import erfc, exp, log, sqrt

from prfaas.core.errors import InvariantError


@dataclass(frozen=True, slots=True)
class Lengths:
    """`tops`: the longest length of each bin, tokens, rising. `tokens`: each bin's mean. `weights`: shares, summing
    to 1."""

    tops: tuple[int, ...]
    tokens: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        sizes = {len(self.tops), len(self.tokens), len(self.weights)}
        rising = all(a < b for a, b in zip(self.tops, self.tops[1:], strict=False))
        if len(sizes) != 1 or not self.tops or not rising or abs(sum(self.weights) - 1) > 1e-6:
            raise InvariantError(f"no distribution: bins {sizes}, weights sum to {sum(self.weights)}")

    def __len__(self) -> int:
        return len(self.tops)

    @property
    def mean(self) -> float:
        """E[L], tokens."""
        return sum(w * x for w, x in zip(self.weights, self.tokens, strict=True))

    def cut(self, threshold: int) -> int:
        """How many bins stay at or below `threshold`."""
        return bisect_right(self.tops, threshold)

    def threshold(self, cut: int) -> int:
        """The threshold that keeps the first `cut` bins: 0 for none."""
        return self.tops[cut - 1] if cut else 0

    def table(self, of: Callable[[float], float]) -> tuple[float, ...]:
        """`of` each bin's mean length."""
        return tuple(of(x) for x in self.tokens)

    def running(self, values: Sequence[float] | None = None) -> tuple[float, ...]:
        """Weighted sums of `values` (left out: 1) over the first 0, 1, ... all bins."""
        parts = self.weights if values is None else (w * v for w, v in zip(self.weights, values, strict=True))
        return tuple(accumulate(parts, initial=0.0))

    def at(self, values: Sequence[float], tokens: float) -> float:
        """A table's value at any length: linear between the bins' means, level outside of them."""
        xs = self.tokens
        at = bisect_right(xs, tokens) - 1
        if at < 0 or at + 1 >= len(xs):
            return values[max(at, 0)]
        return values[at] + (values[at + 1] - values[at]) * (tokens - xs[at]) / (xs[at + 1] - xs[at])


def lognormal(mu: float, sigma: float, low: int, high: int, bins: int = 2048) -> Lengths:
    """Log-normal lengths, cut to [low, high]: at most `bins` of equal ratio, each with its exact mean."""
    ratio = log(high / low) / bins
    edges = sorted({low, high, *(round(low * exp(ratio * i)) for i in range(1, bins))})
    below = [_below(edge, mu, sigma) for edge in edges]
    moment = [_below(edge, mu + sigma * sigma, sigma) for edge in edges]
    whole = below[-1] - below[0]
    if whole <= 1e-12:
        raise InvariantError(f"log-normal lengths of mu {mu} and sigma {sigma} never lie in [{low}, {high}]")
    scale = exp(mu + sigma * sigma / 2)
    rows = []
    for i in range(1, len(edges)):
        share = below[i] - below[i - 1]
        mean = scale * (moment[i] - moment[i - 1]) / share if share > 1e-14 else edges[i]
        rows.append((edges[i], min(max(mean, edges[i - 1]), edges[i]), share / whole))
    return _lengths(rows)


def histogram(counts: Iterable[tuple[int, float]], bins: int = 2048) -> Lengths:
    """Measured lengths and how often: one bin a length, or at most about `bins` of equal weight when there are more."""
    rows = sorted((tokens, count) for tokens, count in counts if count > 0)
    total = sum(count for _, count in rows)
    if not rows:
        raise InvariantError("no lengths")
    made: list[tuple[int, float, float]] = []
    weight = moment = 0.0
    for at, (tokens, count) in enumerate(rows):
        weight, moment = weight + count, moment + tokens * count
        last = at + 1 == len(rows)
        if last or (rows[at + 1][0] != tokens and (len(rows) <= bins or weight >= total / bins)):
            made.append((tokens, moment / weight, weight / total))
            weight = moment = 0.0
    return _lengths(made)


def _lengths(rows: Iterable[tuple[int, float, float]]) -> Lengths:
    tops, tokens, weights = zip(*rows, strict=True)
    return Lengths(tops, tokens, weights)


def _below(x: float, mu: float, sigma: float) -> float:
    return 0.5 * erfc(-(log(x) - mu) / (sigma * sqrt(2)))
