"""How long a prompt takes, or how many bytes it makes, by its length: a table with straight lines between its points.

It knows points; it does not know who made them. What lies outside the table is not known: whoever made it decided how
far it may be trusted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from prfaas.core.errors import InvariantError

Point = tuple[int, int]
MOST_POINTS = 128


class Curve:
    """Values over tokens, linear between `points`: (tokens, value), tokens rising, values never falling.

    Raises InvariantError when they are not so (`sound` tells before).
    """

    __slots__ = ("_tokens", "_values", "points")

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = tuple(points)
        if not sound(self.points):
            raise InvariantError(f"not a curve: {points}")
        self._tokens = [tokens for tokens, _ in points]
        self._values = [value for _, value in points]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Curve) and other.points == self.points

    def __hash__(self) -> int:
        return hash(self.points)

    def __repr__(self) -> str:
        return f"Curve({self.points})"

    def at(self, tokens: int) -> int | None:
        """The value at `tokens`; None outside the table."""
        xs, values = self._tokens, self._values
        at = bisect_left(xs, tokens)
        if at == len(xs):
            return None
        if xs[at] == tokens:
            return values[at]
        if at == 0:
            return None
        low, below = xs[at - 1], values[at - 1]
        return below + (values[at] - below) * (tokens - low) // (xs[at] - low)

    def rest(self, tokens: int, cached: int) -> int | None:
        """The value for what comes after the first `cached` of `tokens` tokens; None where that of all is not known.

        The table knows lengths, not contexts: the rest costs what all of it costs beyond what is there, and no less
        than so many tokens alone. (With a + b L + c L^2 that is right but for a part of a.)
        """
        whole = self.at(tokens)
        if whole is None or cached <= 0:
            return whole
        alone, before = self.at(tokens - cached), self.at(cached)
        if alone is None and before is None:
            return whole
        return max(alone or 0, whole - before if before is not None else 0)


def sound(points: Sequence[Point]) -> bool:
    """Whether they make a curve: at least one, at most `MOST_POINTS`, none below 0, in order."""
    if not 0 < len(points) <= MOST_POINTS or points[0][0] < 0 or points[0][1] < 0:
        return False
    return all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(points))


def curve_of(points: Sequence[Point]) -> Curve | None:
    """What a peer said, if it makes a curve."""
    return Curve(points) if sound(points) else None


def mean(curves: Sequence[Curve]) -> Curve:
    """The mean of them, over the tokens that all of them know, at the points of any; the first where there is none."""
    low = max(curve.points[0][0] for curve in curves)
    high = min(curve.points[-1][0] for curve in curves)
    xs = sorted({x for curve in curves for x, _ in curve.points if low <= x <= high})[:MOST_POINTS]
    if not xs or all(curve == curves[0] for curve in curves):
        return curves[0]
    return Curve([(x, sum(curve.at(x) or 0 for curve in curves) // len(curves)) for x in xs])
