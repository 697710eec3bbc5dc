"""What is asked, in bins of uncached length: for each bin, which uncached and context lengths it stands for.

It knows lengths; it does not know hardware or models. Any cost of a request becomes a table with `table`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prfaas.core.throughput.lengths import Lengths, histogram, lognormal
from prfaas.plan.trace import Asked

Cost = Callable[[int, int], float]
"""Of a request with so many uncached tokens and so much context."""


@dataclass(frozen=True, slots=True)
class Workload:
    """`rows[i]`: of bin `i`, (uncached tokens, context tokens, weight) with weights summing to the bin's."""

    lengths: Lengths
    rows: tuple[tuple[tuple[float, float, float], ...], ...]
    output: float

    @property
    def mean_context(self) -> float:
        """Tokens of a prompt, cached ones included."""
        return sum(w * context for rows in self.rows for _, context, w in rows)

    def table(self, cost: Cost) -> tuple[float, ...]:
        """The mean cost of each bin."""
        found = []
        for rows, weight in zip(self.rows, self.lengths.weights, strict=True):
            if len(rows) == 1:
                found.append(cost(max(1, round(rows[0][0])), max(1, round(rows[0][1]))))
            else:
                total = sum(w * cost(max(1, round(u)), max(1, round(c))) for u, c, w in rows)
                found.append(total / weight)
        return tuple(found)

    def with_hits(self, share: float) -> Workload:
        """The same prompts with this share of the tokens that are computed now found in a cache instead."""
        left = 1 - share
        lengths = self.lengths
        tops: list[int] = []
        for top in lengths.tops:
            tops.append(max(round(top * left), tops[-1] + 1 if tops else 1))
        scaled = Lengths(tuple(tops), tuple(x * left for x in lengths.tokens), lengths.weights)
        rows = tuple(tuple((u * left, c, w) for u, c, w in rows) for rows in self.rows)
        return Workload(scaled, rows, self.output)


def from_lognormal(mu: float, sigma: float, least: int, most: int, output: float, bins: int) -> Workload:
    """Prompts of which nothing is cached."""
    lengths = lognormal(mu, sigma, least, most, bins)
    rows = tuple(((x, x, w),) for x, w in zip(lengths.tokens, lengths.weights, strict=True))
    return Workload(lengths, rows, output)


def from_asked(asked: Iterable[Asked], output: float | None, bins: int, rows: int | None = None) -> Workload:
    """Recorded requests, all of equal weight. `output` None: their mean, at least a token. `rows`: of a bin, at most so
    many kinds of request, each the mean of some with much the same context."""
    requests = list(asked)
    lengths = histogram(Counter(one.uncached for one in requests).items(), bins)
    share = 1 / len(requests)
    found: list[list[tuple[float, float, float]]] = [[] for _ in lengths.tops]
    pairs = Counter((one.context, one.uncached) for one in requests)
    for (context, uncached), count in sorted(pairs.items()):
        found[lengths.cut(uncached - 1)].append((uncached, context, count * share))
    mean = sum(one.output for one in requests) * share
    kept = tuple(tuple(_joined(one, rows)) for one in found)
    return Workload(lengths, kept, output if output is not None else max(1.0, mean))


def _joined(rows: list[tuple[float, float, float]], most: int | None) -> Iterator[tuple[float, float, float]]:
    """Neighbours in `rows` joined, so that about `most` are left."""
    size = 1 if most is None else -(-len(rows) // most)
    for at in range(0, len(rows), size):
        some = rows[at : at + size]
        weight = sum(w for _, _, w in some)
        yield sum(u * w for u, _, w in some) / weight, sum(c * w for _, c, w in some) / weight, weight
