"""Samples to a profile: medians that never fall, and how far they are from what was held out.

It knows samples, points and residuals; it does not know how either came about. Times must not fall as tokens,
sequences or context are more; where noise says so, neighbours are pooled (pool adjacent violators: the nearest rising
values in the least-squares sense), and how far that moved them is reported. The last repeat of each point takes no part
in the fit: the error is its distance from the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from statistics import median

from prfaas.config.units import Timeout
from prfaas.core.errors import LocalError
from prfaas.measure.samples import Sample
from prfaas.model.profile import Curve
from prfaas.model.profilefile import DecodePoint, DecodeTable, PrefillPoint, PrefillTable, ProfileFile
from prfaas.model.rising import Grid, raised

GRAIN_NS = 1000
"""Times are written in whole microseconds."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Points by (cached, uncached) or (batch, context), ns. `errors`: of what was held out, as shares of the fit.

    `moved`: how far points were moved so as not to fall, as shares. `between`: how far off a point would be, were it
    left out and drawn from its neighbours: what interpolation is worth here.
    """

    points: Mapping[tuple[int, int], int]
    errors: tuple[float, ...]
    moved: tuple[float, ...]
    between: tuple[float, ...]

    def text(self) -> str:
        """One line."""
        said = [f"held-out repeats are off by {_range(self.errors)}" if self.errors else "no repeats to test the fit"]
        most = max(self.moved, default=0.0)
        said.append(f"points moved so as not to fall: by up to {most:.1%}" if most else "no point had to be moved")
        if self.between:
            said.append(f"points left out are off by {_range(self.between)}")
        return "; ".join(said)


def fit_prefill(samples: Iterable[Sample]) -> Fit:
    """Of the samples of prefill: points by (cached, uncached)."""
    groups = _points([one for one in samples if one.what == "prefill"], lambda one: one.y)
    # A first token that all prompts share may be cached; that is no cached prefix.
    cached = {
        y: round(median(one.over for point in points for one in point)) if y else 0 for y, points in groups.items()
    }
    raw = {
        (cached[y], round(median(one.of for one in point))): point for y, points in groups.items() for point in points
    }
    return _fit(raw, {at: median(_kept(point)) for at, point in raw.items()}, across=False)


def fit_decode(samples: Iterable[Sample]) -> Fit:
    """Of the samples of decode: points by (batch, context). Contexts are made the same for all batches."""
    groups = _points([one for one in samples if one.what == "decode"], lambda one: one.y)
    contexts = {y: round(median(one.over for point in points for one in point)) for y, points in groups.items()}
    raw = {(point[0].of, contexts[y]): point for y, points in groups.items() for point in points}
    values = {at: median(_kept(point)) for at, point in raw.items()}
    values = _levelled(values, {at: round(median(one.over for one in point)) for at, point in raw.items()})
    return _fit(raw, values, across=True)


def profile_of_samples(samples: Sequence[Sample], name: str, source: str, made: date) -> tuple[ProfileFile, Fit, Fit]:
    """The profile file, and the fits of prefill and decode. Raises LocalError when a table would be empty."""
    prefill, decode = fit_prefill(samples), fit_decode(samples)
    for what, fit in (("prefill", prefill), ("decode", decode)):
        if not fit.points:
            raise LocalError(f"no {what} was measured; expected at least one point of it")
    said = ProfileFile(
        name=name,
        source=source,
        date=made,
        prefill=PrefillTable(
            basis="measured",
            note=f"Time to the first token at the client. {_sentence(prefill.text())}",
            points=tuple(
                PrefillPoint(uncached=uncached, cached=cached, time_ns=Timeout(ns))
                for (cached, uncached), ns in prefill.points.items()
            ),
        ),
        decode=DecodeTable(
            basis="measured",
            note=f"Time between tokens at the client. {_sentence(decode.text())}",
            points=tuple(
                DecodePoint(batch=batch, context=context, time_ns=Timeout(ns))
                for (batch, context), ns in decode.points.items()
            ),
        ),
    )
    return said, prefill, decode


def _points(samples: list[Sample], group: Callable[[Sample], int]) -> dict[int, list[list[Sample]]]:
    """Repeats of one point together, by group, smaller points first."""
    order = sorted(samples, key=lambda one: (group(one), one.x, one.repeat))
    points = [list(point) for _, point in groupby(order, key=lambda one: (group(one), one.x))]
    return {y: list(some) for y, some in groupby(points, key=lambda point: group(point[0]))}


def _kept(point: Sequence[Sample]) -> list[int]:
    """The times that take part in the fit: all but the last, if there are several."""
    times = [one.ns for one in point]
    return times[:-1] if len(times) > 1 else times


def _levelled(values: Grid, contexts: Mapping[tuple[int, int], int]) -> Grid:
    """What each would have been at the context of its column: batches differ by how long they were in finding each
    other, and a batch's own times over context say what that is worth."""
    found = {}
    for batch in {batch for batch, _ in values}:
        curve: dict[int, float] = {}
        for at in sorted(values):
            if at[0] == batch:
                curve[contexts[at]] = max([values[at], *curve.values()])
        line = Curve([(x, round(ns)) for x, ns in sorted(curve.items())])
        for at in values:
            if at[0] == batch:
                shift = line.at(at[1]).ns - line.at(contexts[at]).ns if len(curve) > 1 else 0
                found[at] = max(1.0, values[at] + shift)
    return found


def _fit(raw: Mapping[tuple[int, int], list[Sample]], values: Grid, *, across: bool) -> Fit:
    fitted = raised(values, across=across)
    points = {at: max(GRAIN_NS, round(ns / GRAIN_NS) * GRAIN_NS) for at, ns in fitted.items()}
    return Fit(
        points,
        tuple(abs(point[-1].ns - points[at]) / points[at] for at, point in raw.items() if len(point) > 1),
        tuple(abs(points[at] - ns) / ns for at, ns in values.items() if abs(points[at] - ns) > GRAIN_NS),
        tuple(_between({(at[1], at[0]): ns for at, ns in points.items()} if across else points)),
    )


def _between(points: Mapping[tuple[int, int], int]) -> Iterable[float]:
    """Of prefill over uncached tokens, of decode over the batch."""
    for group in sorted({at[0] for at in points}):
        line = [(x, ns) for (y, x), ns in sorted(points.items()) if y == group]
        for left, (x, ns), right in zip(line, line[1:], line[2:], strict=False):
            yield abs(Curve([left, right]).at(x).ns - ns) / ns


def _range(shares: Sequence[float]) -> str:
    return f"{median(shares):.1%} (median), {max(shares):.1%} (most)"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."
