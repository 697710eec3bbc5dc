"""Break-even points: at each the two sides are equal, and beside it they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.plan.plan import Plan

from .conftest import plan_of


def test_at_the_bandwidth_both_do_as_much(paper: Plan) -> None:
    bps = paper.break_even.bandwidth_bps
    assert bps is not None
    assert paper.margins.with_bandwidth(bps).ratio == pytest.approx(1, abs=2e-3)


def test_above_what_binds_more_bandwidth_brings_nothing(paper: Plan) -> None:
    bps = paper.break_even.binds_bps
    assert bps is not None
    at, wide = paper.margins.with_bandwidth(bps), paper.margins.with_bandwidth(bps * 100)
    assert at.prfaas == pytest.approx(wide.prfaas, rel=2e-3)
    assert paper.margins.with_bandwidth(bps * 0.9).prfaas < wide.prfaas * 0.999


@pytest.mark.slow
def test_at_the_hits_the_gain_ends(changed: Callable[..., Path]) -> None:
    """Decode first: with long answers and most of the prompt cached, more decode nodes beat faster prefill."""
    plan = plan_of(changed(("output: 1024", "output: 3000")))
    hits = plan.break_even.hits
    assert hits is not None
    assert plan.margins.with_hits(hits).ratio <= 1 + 1e-9
    assert plan.margins.with_hits(max(0.0, hits - 0.01)).ratio > 1


def test_with_prices_the_ratio_counts_the_line(two_by_two: Plan) -> None:
    ratio, exact = two_by_two.price_ratio, two_by_two.exact
    assert ratio is not None
    free = (exact.prfaas.rate / exact.homogeneous.rate * 20 - 14) / 6
    assert ratio < free


def test_no_gain_has_no_break_even(changed: Callable[..., Path]) -> None:
    """Slow nodes far away, over a line that would do."""
    plan = plan_of(changed(("profile: paper-h200", "profile: paper-h20"), ("output: 1024", "output: 20000")))
    assert plan.exact.prfaas.rate < plan.exact.homogeneous.rate
    assert plan.break_even.bandwidth_bps is None
    assert plan.break_even.hits is None
