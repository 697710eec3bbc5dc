"""How much of a mix of work fits into resources: a packing linear program, solved by simplex with made-up columns.

Work comes in groups of classes. Each class has a weight and must be done by one of its group's options, or by several
in shares; an option uses resources, so much a unit of the class. Find the highest rate of the whole mix that fits.

A pattern says for each class which option does it. As a linear program: patterns at rates x >= 0, as much in all as can
be, so that no resource is used beyond its capacity. There are far too many patterns to list, but the best one under
given prices of resources is each class's cheapest option; so columns are made as the simplex asks for them. By duality
every price vector bounds the rate from above, so the answer carries its own proof: `rate <= optimum <= bound`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf

Pattern = tuple[bytes, ...]
"""For each group, the option of each of its classes."""

_GAP = 1e-7
_PIVOT = 1e-11
_MOST = 4000


@dataclass(frozen=True, slots=True)
class Option:
    """`uses`: resources, and how much of each a unit of every class needs."""

    uses: tuple[tuple[int, Sequence[float]], ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Classes with `weights`, all of which have these `options` (at most 256)."""

    weights: Sequence[float]
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """`rate` of the mix that fits; no rate above `bound` does. `mix`: rates of patterns, summing to `rate`.
    `worth[r]`: the share of the limit that resource `r` is, by its price; they sum to 1."""

    rate: float
    bound: float
    mix: tuple[tuple[float, Pattern], ...]
    worth: tuple[float, ...]

    def shares(self, group: int, options: int, classes: int) -> list[list[float]]:
        """For each option of a group, the share of each class that it does."""
        found = [[0.0] * classes for _ in range(options)]
        for rate, pattern in self.mix:
            for at, option in enumerate(pattern[group]):
                found[option][at] += rate / self.rate
        return found


class Packing:
    """Groups of work, to be fitted into capacities. Patterns that were of use are kept for the next question."""

    def __init__(self, groups: Sequence[Group], start: Iterable[Pattern] = ()) -> None:
        self.groups = groups
        self.known = list(start)

    def solve(self, capacities: Sequence[float]) -> Packed:
        """The highest rate within `capacities`. What needs a resource of capacity 0 is not used."""
        choices = [
            [at for at, o in enumerate(group.options) if all(capacities[row] > 0 for row, _ in o.uses)]
            for group in self.groups
        ]
        rows = len(capacities)
        if not all(choices):
            return Packed(0.0, 0.0, (), (0.0,) * rows)
        scale = [1 / cap if cap > 0 else 0.0 for cap in capacities]
        pattern = self._cheapest([1.0] * rows, scale, choices)
        loads = self._loads(pattern, scale)
        if not any(loads):
            return Packed(inf, inf, (), (0.0,) * rows)
        unit = max(loads)
        scale, loads = [one / unit for one in scale], [load / unit for load in loads]
        basis = _Basis(rows)
        basis.enter(loads, pattern)
        for known in self.known:
            if all(set(picks) <= set(allowed) for picks, allowed in zip(known, choices, strict=True)):
                basis.improve(self._loads(known, scale), known)
        bound, prices = inf, basis.prices()
        for _ in range(_MOST):
            if basis.free(prices):
                prices = basis.prices()
                continue
            prices = [max(price, 0.0) for price in prices]
            pattern = self._cheapest(prices, scale, choices)
            loads = self._loads(pattern, scale)
            cost = sum(p * load for p, load in zip(prices, loads, strict=True))
            bound = min(bound, sum(prices) / cost if cost > 0 else inf)
            if basis.rate() >= bound * (1 - _GAP) or not basis.improve(loads, pattern):
                break
            prices = basis.prices()
        return self._packed(basis, bound / unit, prices, scale, unit)

    def _packed(self, basis: _Basis, bound: float, prices: list[float], scale: list[float], unit: float) -> Packed:
        """The basis as an answer that fits for certain: rounding is scaled away. Rates in it are `unit` times too
        large, so that its numbers are near 1."""
        mix = [(rate, pattern) for rate, pattern in basis.mix() if rate > 0]
        self.known = [pattern for _, pattern in mix]
        used = [0.0] * len(scale)
        for rate, pattern in mix:
            used = [a + rate * b for a, b in zip(used, self._loads(pattern, scale), strict=True)]
        over = unit * max([1.0, *used])
        whole = sum(max(p, 0.0) for p in prices) or 1.0
        worth = tuple(max(p, 0.0) / whole for p in prices)
        mix = [(rate / over, pattern) for rate, pattern in mix]
        rate = sum(rate for rate, _ in mix)
        return Packed(rate, max(rate, bound), tuple(mix), worth)

    def _cheapest(self, prices: Sequence[float], scale: Sequence[float], choices: list[list[int]]) -> Pattern:
        """The pattern that costs least: each class's cheapest option."""
        made = []
        for group, allowed in zip(self.groups, choices, strict=True):
            costs = [_cost(group.options[at], prices, scale) for at in allowed]
            if len(costs) == 1:
                made.append(bytes([allowed[0]]) * len(costs[0]))
            elif len(costs) == 2:
                first, second = allowed
                made.append(bytes(first if a <= b else second for a, b in zip(*costs, strict=True)))
            else:
                made.append(bytes(allowed[row.index(min(row))] for row in zip(*costs, strict=True)))
        return tuple(made)

    def _loads(self, pattern: Pattern, scale: Sequence[float]) -> list[float]:
        """What a unit rate of the pattern uses of each resource, as a part of its capacity."""
        loads = [0.0] * len(scale)
        for group, picks in zip(self.groups, pattern, strict=True):
            for at in set(picks):
                for row, amounts in group.options[at].uses:
                    used = sum(w * a for w, a, pick in zip(group.weights, amounts, picks, strict=True) if pick == at)
                    loads[row] += used * scale[row]
        return loads


def _cost(option: Option, prices: Sequence[float], scale: Sequence[float]) -> list[float]:
    terms = [(prices[row] * scale[row], amounts) for row, amounts in option.uses]
    if len(terms) == 1:
        price, amounts = terms[0]
        return [price * a for a in amounts]
    if len(terms) == 2:
        (first, xs), (second, ys) = terms
        return [first * x + second * y for x, y in zip(xs, ys, strict=True)]
    return [sum(price * amounts[i] for price, amounts in terms) for i in range(len(terms[0][1]))]


class _Basis:
    """A simplex basis of `rows` constraints with right sides 1: at first each row's slack, worth nothing."""

    def __init__(self, rows: int) -> None:
        self.inverse = [[1.0 if i == j else 0.0 for j in range(rows)] for i in range(rows)]
        self.values = [1.0] * rows
        self.patterns: list[Pattern | None] = [None] * rows

    def rate(self) -> float:
        return sum(v for v, pattern in zip(self.values, self.patterns, strict=True) if pattern is not None)

    def mix(self) -> Iterable[tuple[float, Pattern]]:
        return [(v, pattern) for v, pattern in zip(self.values, self.patterns, strict=True) if pattern is not None]

    def prices(self) -> list[float]:
        """What one more of each resource would add to the rate."""
        rows = [row for row, pattern in zip(self.inverse, self.patterns, strict=True) if pattern is not None]
        return [sum(column) for column in zip(*rows, strict=True)] if rows else [0.0] * len(self.values)

    def free(self, prices: Sequence[float]) -> bool:
        """Leave some of a resource unused where its price is below 0. Whether that was so."""
        worst = min(range(len(prices)), key=prices.__getitem__)
        return prices[worst] < -1e-10 and self._enter([row[worst] for row in self.inverse], None)

    def improve(self, loads: Sequence[float], pattern: Pattern) -> bool:
        """Take a pattern in when the prices say that it adds to the rate. Whether it could."""
        cost = sum(p * load for p, load in zip(self.prices(), loads, strict=True))
        return cost < 1 - 1e-12 and self.enter(loads, pattern)

    def enter(self, loads: Sequence[float], pattern: Pattern) -> bool:
        """Take a pattern in; what then first reaches zero leaves."""
        return self._enter([sum(a * b for a, b in zip(row, loads, strict=True)) for row in self.inverse], pattern)

    def _enter(self, column: Sequence[float], pattern: Pattern | None) -> bool:
        leaving = [(self.values[i] / c, -c, i) for i, c in enumerate(column) if c > _PIVOT]
        if not leaving:
            return False
        _, _, at = min(leaving)
        pivot = column[at]
        row = [value / pivot for value in self.inverse[at]]
        value = self.values[at] / pivot
        for i, c in enumerate(column):
            if i != at and c:
                self.inverse[i] = [a - c * b for a, b in zip(self.inverse[i], row, strict=True)]
                self.values[i] = max(0.0, self.values[i] - c * value)
        self.inverse[at], self.values[at], self.patterns[at] = row, value, pattern
        return True
