"""How long prefills of a cluster take, learned from those that it finished.

It knows lengths and times; it does not know nodes, nor when. T(L) = a + b L + c L^2, none of them negative: fixed
costs, what grows with tokens, and attention.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from math import ceil
from statistics import median

from prfaas.core.routing.curve import Curve

KEPT = 15
"""Samples of each octave of lengths: the latest."""
LEAST = 3
"""So many samples of an octave count, so that one which something else slowed down is not the median."""
RANGE = 4
"""How much longer the longest must be than the shortest before anything is known."""
REACH = 16
"""How far outside of what was seen the formula is believed. What is taken too short there is tried, and then seen."""
STEPS = 2
"""Points of the table an octave: between them a parabola is 3 % off its chord at the most."""


class Pace:
    """Told of prefills; `curve` has what follows from them.

    The median of each octave of lengths counts, so that less than half of its samples may be anything. Between octaves
    errors count by their part of the time, so that short prompts are as well predicted as long ones.
    """

    __slots__ = ("_curve", "_fresh", "_seen")

    def __init__(self) -> None:
        self._seen: dict[int, deque[tuple[int, int]]] = {}
        self._curve: Curve | None = None
        self._fresh = True

    def finished(self, tokens: int, took_ns: int) -> None:
        """A prefill of `tokens` tokens took a node `took_ns`."""
        if tokens < 1:
            return
        self._seen.setdefault(tokens.bit_length(), deque(maxlen=KEPT)).append((tokens, took_ns))
        self._fresh = False

    @property
    def curve(self) -> Curve | None:
        """The times, from 1/`REACH` of the shortest length to `REACH` times the longest; None while too little is
        known: at least `LEAST` prompts each of two octaves, whose medians are `RANGE` apart."""
        if not self._fresh:
            self._curve, self._fresh = self._learned(), True
        return self._curve

    def _learned(self) -> Curve | None:
        known = [_medians(self._seen[octave]) for octave in sorted(self._seen) if len(self._seen[octave]) >= LEAST]
        if len(known) < 2 or known[-1][0] < RANGE * known[0][0]:
            return None
        parts = _fit(known)
        low, high = max(1.0, known[0][0] / REACH), known[-1][0] * REACH
        steps = [low]
        while steps[-1] < high:
            steps.append(steps[-1] * 2 ** (1 / STEPS))
        lengths = sorted({ceil(length) for length in steps})
        points = [(length, max(1, round(sum(part * length**power for power, part in parts)))) for length in lengths]
        return Curve(points)


def _medians(samples: Sequence[tuple[int, int]]) -> tuple[float, float, int]:
    """Median length, the median time of that length, and how many they are of."""
    length = median(tokens for tokens, _ in samples)
    return length, median(took_ns * length / tokens for tokens, took_ns in samples), len(samples)


def _fit(known: Sequence[tuple[float, float, int]]) -> list[tuple[int, float]]:
    """(power, factor) of the terms that are not 0: weighted least squares of relative errors over all choices of terms,
    the best without a negative factor."""
    longest = known[-1][0]
    best: list[tuple[int, float]] = []
    least = float("inf")
    for count in (1, 2, 3):
        for powers in combinations((0, 1, 2), count):
            factors = _solved(known, powers, longest)
            if factors is None or min(factors) < 0:
                continue
            error = 0.0
            for length, took, many in known:
                said = sum(f * (length / longest) ** p for p, f in zip(powers, factors, strict=True))
                error += many * (said / max(took, 1.0) - 1) ** 2
            if error < least - 1e-12:
                least = error
                best = [(p, f / longest**p) for p, f in zip(powers, factors, strict=True)]
    return best


def _solved(known: Sequence[tuple[float, float, int]], powers: Sequence[int], longest: float) -> list[float] | None:
    """Normal equations by elimination; lengths are in parts of the longest. None when they have no single answer."""
    rows = [[0.0] * (len(powers) + 1) for _ in powers]
    for length, took, many in known:
        weight = many / max(took, 1.0) ** 2
        values = [(length / longest) ** p for p in powers]
        for row, value in zip(rows, values, strict=True):
            for at, other in enumerate((*values, max(took, 1.0))):
                row[at] += weight * value * other
    size = len(rows)
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        if abs(rows[pivot][at]) < 1e-12 * abs(rows[0][0] or 1.0):
            return None
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for below in range(size):
            if below != at:
                factor = rows[below][at] / rows[at][at]
                rows[below] = [value - factor * top for value, top in zip(rows[below], rows[at], strict=True)]
    return [rows[at][size] / rows[at][at] for at in range(size)]
