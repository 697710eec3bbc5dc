"""Histograms: exact sums, quantiles to one part in 256, little memory."""

from __future__ import annotations

from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from prfaas.sim.stats import Histogram

values = st.lists(st.integers(0, 10**15), min_size=1, max_size=200)


@given(values, st.floats(0.01, 1))
def test_a_quantile_is_as_near_as_promised(found: list[int], share: float) -> None:
    histogram = Histogram()
    for value in found:
        histogram.add(value)
    exact = sorted(found)[max(1, ceil(share * len(found))) - 1]
    assert abs(histogram.quantile(share) - exact) <= exact / 256
    assert histogram.mean == sum(found) / len(found)
    assert histogram.count == len(found)


def test_memory_does_not_grow_with_what_is_counted() -> None:
    histogram = Histogram()
    for value in range(0, 10**6, 7):
        histogram.add(value)
    assert len(histogram.buckets) <= 256 * 20


def test_nothing_has_no_mean() -> None:
    assert (Histogram().mean, Histogram().quantile(0.5)) == (0.0, 0.0)


def test_steps_end_with_everything() -> None:
    histogram = Histogram()
    for value in (3, 5, 5, 1000):
        histogram.add(value)
    assert histogram.steps() == [(3.0, 0.25), (5.0, 0.75), (1000.5, 1.0)]
