"""Pooling: what comes out rises, is the nearest that does, and what rises already stays."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.model.rising import raised, rising

VALUES = st.lists(st.integers(1, 1000).map(float), min_size=1, max_size=12)


@given(VALUES)
def test_the_nearest_rising_values(values: list[float]) -> None:
    """By the max-min formula of isotonic regression, an independent way to the same values."""

    def mean(first: int, last: int) -> float:
        return sum(values[first : last + 1]) / (last + 1 - first)

    count = len(values)
    exact = [max(min(mean(j, k) for k in range(i, count)) for j in range(i + 1)) for i in range(count)]
    assert rising(values) == pytest.approx(exact)


@given(st.dictionaries(st.tuples(st.integers(1, 5), st.integers(1, 5)), st.floats(1, 1e9), min_size=1))
def test_grids_rise_both_ways(values: dict[tuple[int, int], float]) -> None:
    found = raised(values, across=True)
    assert found.keys() == values.keys()
    for (a, x), one in found.items():
        for (b, y), other in found.items():
            if (a == b and x <= y) or (x == y and a <= b):
                assert one <= other
    for group in {a for a, _ in values}:
        line = [value for (a, _), value in raised(values, across=False).items() if a == group]
        assert all(one <= other for one, other in pairwise(line))


def test_what_rises_stays() -> None:
    grid = {(1, 1): 1.0, (1, 2): 2.0, (2, 1): 1.5, (2, 2): 2.0}
    assert raised(grid, across=True) == grid
    assert raised({(1, 2): 1.0, (1, 1): 3.0, (2, 1): 2.0}, across=False) == {(1, 1): 2.0, (1, 2): 2.0, (2, 1): 2.0}
