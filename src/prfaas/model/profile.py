"""A profile: how long one node takes to prefill and to decode, from measured points.

It knows points and what lies between them; it does not know where they were measured, nor how a file is laid out
(`profilefile`). Everything is whole nanoseconds and tokens. Between points times are linear (so never falling); outside
of them they are extrapolated, and marked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise

from prfaas.core.errors import InvariantError

Point = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A time. `extrapolated`: no measured points lie around it."""

    ns: int
    extrapolated: bool = False


class Curve:
    """Times over one quantity, linear between `points`: (x, ns), x rising and ns never falling.

    Outside, the nearest segment is drawn on; one point alone is drawn on through the origin.
    """

    __slots__ = ("_ns", "_xs")

    def __init__(self, points: Sequence[Point]) -> None:
        self._xs = [x for x, _ in points]
        self._ns = [ns for _, ns in points]
        steps = list(pairwise(points))
        if not points or any(b[0] <= a[0] or b[1] < a[1] for a, b in steps) or points[0][0] < 0:
            raise InvariantError(f"not a curve: {points}")

    def scaled(self, factor: float) -> Curve:
        """The same with each time `factor` times as long."""
        return Curve([(x, round(ns * factor)) for x, ns in zip(self._xs, self._ns, strict=True)])

    def at(self, x: int) -> Estimate:
        """The time at `x`, never below 0."""
        xs, ns = self._xs, self._ns
        outside = not xs[0] <= x <= xs[-1]
        if len(xs) == 1:
            return Estimate(ns[0] * x // xs[0] if xs[0] else ns[0], outside)
        at = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
        rise, run = ns[at + 1] - ns[at], xs[at + 1] - xs[at]
        return Estimate(max(0, ns[at] + rise * (x - xs[at]) // run), outside)


@dataclass(frozen=True, slots=True)
class Profile:
    """`name`, `source` and `date` say what it is of. `prefills` by cached tokens, ascending, 0 among them: time over
    uncached tokens. `decodes` by batch, ascending: step time over context, None where one time holds for any context,
    which is `steps` then.
    """

    name: str
    source: str
    date: date
    prefills: tuple[tuple[int, Curve], ...]
    decodes: tuple[tuple[int, Curve | int], ...]

    def scaled(self, factor: float) -> Profile:
        """The same with each time `factor` times as long."""
        prefills = tuple((cached, curve.scaled(factor)) for cached, curve in self.prefills)
        decodes = tuple(
            (batch, round(step * factor) if isinstance(step, int) else step.scaled(factor))
            for batch, step in self.decodes
        )
        return replace(self, prefills=prefills, decodes=decodes)

    def prefill_ns(self, uncached: int, context: int) -> int:
        """See `prefill`."""
        return self.prefill(uncached, context).ns

    def decode_step_ns(self, batch: int, context: int) -> int:
        """See `decode_step`."""
        return self.decode_step(batch, context).ns

    def prefill(self, uncached: int, context: int) -> Estimate:
        """Time to compute the last `uncached` of `context` tokens, when the others are cached.

        Between measured cached lengths it is linear. Beyond the longest one, what more context costs is taken from the
        curve of uncached prompts: T(context) - T(cached), and that is extrapolated.
        """
        cached = context - uncached
        if uncached < 0 or cached < 0:
            raise InvariantError(f"{uncached} uncached of {context} tokens")
        if uncached == 0:
            return Estimate(0)
        at = bisect_right(self.prefills, cached, key=lambda one: one[0]) - 1
        below, curve = self.prefills[at]
        found = curve.at(uncached)
        if cached == below:
            return found
        if at + 1 < len(self.prefills):
            above, other = self.prefills[at + 1]
            more = other.at(uncached)
            rise = (more.ns - found.ns) * (cached - below) // (above - below)
            return Estimate(found.ns + rise, found.extrapolated or more.extrapolated)
        whole = self.prefills[0][1]
        longer = whole.at(context).ns - whole.at(cached).ns
        known = whole.at(below + uncached).ns - whole.at(below).ns
        return Estimate(max(0, found.ns + longer - known), True)

    def decode_step(self, batch: int, context: int) -> Estimate:
        """Time of one step of `batch` sequences of `context` tokens each on average.

        Below the smallest measured batch a step takes as long as there; above the largest it grows with the batch, so
        that no throughput is claimed that was not measured.
        """
        if batch < 1 or context < 0:
            raise InvariantError(f"a step of {batch} sequences of {context} tokens")
        at = bisect_right(self.decodes, batch, key=lambda one: one[0]) - 1
        if at < 0:
            return Estimate(_step(self.decodes[0][1], context).ns, True)
        below, curve = self.decodes[at]
        found = _step(curve, context)
        if batch == below:
            return found
        if at + 1 == len(self.decodes):
            return Estimate(-(-found.ns * batch // below), True)
        above, other = self.decodes[at + 1]
        more = _step(other, context)
        rise = (more.ns - found.ns) * (batch - below) // (above - below)
        return Estimate(found.ns + rise, found.extrapolated or more.extrapolated)


def _step(curve: Curve | int, context: int) -> Estimate:
    return Estimate(curve) if isinstance(curve, int) else curve.at(context)
