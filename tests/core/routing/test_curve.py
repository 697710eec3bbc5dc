"""Tables over lengths: what is between the points, what is not known, what is no table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError
from prfaas.core.routing.curve import MOST_POINTS, Curve, Point, curve_of, mean


@st.composite
def tables(draw: st.DrawFn) -> list[Point]:
    xs = sorted(draw(st.sets(st.integers(0, 10**6), min_size=1, max_size=20)))
    values = sorted(draw(st.lists(st.integers(0, 10**12), min_size=len(xs), max_size=len(xs))))
    return list(zip(xs, values, strict=True))


@given(tables(), st.integers(-10, 10**6 + 10))
def test_points_are_met_nothing_falls_and_outside_is_unknown(points: list[Point], x: int) -> None:
    curve = Curve(points)
    assert [curve.at(at) for at, _ in points] == [value for _, value in points]
    low, high = points[0][0], points[-1][0]
    found, after = curve.at(x), curve.at(x + 1)
    assert (found is None) == (not low <= x <= high)
    if found is not None and after is not None:
        assert points[0][1] <= found <= after <= points[-1][1]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [(1, 1), (1, 2)],
        [(2, 1), (1, 2)],
        [(1, 2), (2, 1)],
        [(-1, 1)],
        [(1, -1)],
        [(n, n) for n in range(MOST_POINTS + 1)],
    ],
)
def test_what_a_peer_says_is_a_curve_or_nothing(points: list[Point]) -> None:
    assert curve_of(points) is None
    with pytest.raises(InvariantError, match="not a curve"):
        Curve(points)


@given(st.lists(tables(), min_size=1, max_size=3))
def test_the_mean_is_between_all(sets: list[list[Point]]) -> None:
    curves = [Curve(points) for points in sets]
    common = mean(curves)
    for x, value in common.points:
        known = [found for curve in curves if (found := curve.at(x)) is not None]
        if len(known) == len(curves):
            assert min(known) <= value <= max(known)
        else:
            assert common == curves[0], "nothing that all know"
