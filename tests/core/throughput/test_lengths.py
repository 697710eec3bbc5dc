"""Distributions of lengths: the paper's, histograms, and their sums."""

from __future__ import annotations

from math import exp, inf, log
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError
from prfaas.core.throughput.lengths import Lengths, histogram, lognormal

PAPER = lognormal(9.90, 1.00, 128, 131072)


def test_the_papers_lengths() -> None:
    """Section 5: mean about 27K; 49.6 % above 19.4K; l_long 45.0K and l_short 10.2K [D]."""
    cut = PAPER.cut(19400)
    weights, moments = PAPER.running(), PAPER.running(PAPER.tokens)
    p = 1 - weights[cut]
    assert PAPER.mean == pytest.approx(27_000, rel=0.03)
    assert p == pytest.approx(0.496, abs=0.002)
    assert (moments[-1] - moments[cut]) / p == pytest.approx(45_000, rel=0.01)
    assert moments[cut] / weights[cut] == pytest.approx(10_200, rel=0.01)


@given(st.floats(6, 11), st.floats(0.2, 2), st.integers(2, 400))
def test_lognormal_has_the_mass_below_each_top(mu: float, sigma: float, bins: int) -> None:
    found, normal = lognormal(mu, sigma, 64, 200_000, bins), NormalDist(mu, sigma)
    low, high = normal.cdf(log(64)), normal.cdf(log(200_000))
    sums = found.running()
    for cut in (1, len(found) // 2, len(found)):
        expected = (normal.cdf(log(found.threshold(cut))) - low) / (high - low)
        assert sums[cut] == pytest.approx(expected, abs=1e-9)
    assert list(found.tokens) == sorted(found.tokens)


@pytest.mark.parametrize("bins", [8, 64, 2048])
def test_the_mean_does_not_depend_on_bins(bins: int) -> None:
    assert lognormal(9.90, 1.00, 128, 131072, bins).mean == pytest.approx(PAPER.mean, rel=1e-9)


def test_an_uncut_lognormal_has_its_own_mean() -> None:
    assert lognormal(7, 0.5, 1, 10**9).mean == pytest.approx(exp(7 + 0.125), rel=1e-3)


def test_a_range_that_never_happens_is_refused() -> None:
    with pytest.raises(InvariantError, match="never lie in"):
        lognormal(2, 0.1, 100_000, 200_000)


counts = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 50)), min_size=1, max_size=80)


@given(counts, st.integers(1, 40))
def test_a_histogram_keeps_weights_and_mean(rows: list[tuple[int, int]], bins: int) -> None:
    found = histogram(rows, bins)
    total = sum(count for _, count in rows)
    assert sum(found.weights) == pytest.approx(1)
    assert found.mean == pytest.approx(sum(x * count for x, count in rows) / total)
    for cut in range(len(found) + 1):
        below = sum(count for x, count in rows if x <= found.threshold(cut))
        assert found.running()[cut] == pytest.approx(below / total)


@given(counts, st.integers(0, 400))
def test_cut_and_threshold_agree(rows: list[tuple[int, int]], threshold: int) -> None:
    found = histogram(rows)
    cut = found.cut(threshold)
    assert found.threshold(cut) <= threshold
    assert found.cut(found.threshold(cut)) == cut


def test_a_table_is_read_between_its_bins() -> None:
    lengths = Lengths((10, 20), (10.0, 20.0), (0.5, 0.5))
    table = lengths.table(lambda tokens: 3 * tokens)
    assert [lengths.at(table, x) for x in (0, 10, 15, 20, 99)] == [30, 30, 45, 60, 60]


@pytest.mark.parametrize(
    "wrong", [((), (), ()), ((1, 1), (1.0, 1.0), (0.5, 0.5)), ((1,), (1.0,), (0.5,)), ((1, 2), (1.0,), (1.0,))]
)
def test_what_is_no_distribution_is_refused(
    wrong: tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]],
) -> None:
    with pytest.raises(InvariantError):
        Lengths(*wrong)


def test_nothing_is_no_histogram() -> None:
    with pytest.raises(InvariantError):
        histogram([])
    assert histogram([(5, 1)]).threshold(1) == 5
    assert inf > histogram([(5, 1)]).mean
