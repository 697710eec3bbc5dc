"""Times that do not fall, from times that noise or a model's seams let fall.

It knows values on a line or a grid; it does not know what they are of. Neighbours that fall are pooled (pool adjacent
violators), which gives the nearest rising values in the least-squares sense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PASSES = 100
CLOSE = 1e-6
"""Passes end when none moves a value by a larger share."""

Grid = dict[tuple[int, int], float]
"""Values by (group, x)."""


def rising(values: Sequence[float]) -> list[float]:
    """The nearest values that do not fall."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            before, many = pools.pop()
            mean, count = (mean * count + before * many) / (count + many), count + many
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def raised(values: Mapping[tuple[int, int], float], *, across: bool) -> Grid:
    """Not falling along x within each group and, `across`, from group to group at the same x; sorted."""
    found = dict(sorted(values.items()))
    axes = (0, 1) if across else (0,)
    for _ in range(PASSES):
        before = dict(found)
        for axis in axes:
            for key in sorted({at[axis] for at in found}):
                line = [at for at in found if at[axis] == key]
                found.update(zip(line, rising([found[at] for at in line]), strict=True))
        if all(abs(found[at] - before[at]) <= CLOSE * before[at] for at in found):
            break
    return _climbed(found, axes)


def _climbed(values: Grid, axes: Sequence[int]) -> Grid:
    """What the passes left of falling, less than a rounding, taken out: each at least what is before it."""
    found: Grid = {}
    for at, value in values.items():
        before = [found[one] for one in found for axis in axes if one[axis] == at[axis] and one <= at]
        found[at] = max([value, *before])
    return found
