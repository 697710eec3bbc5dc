"""Break-even points: at each the two sides are equal, and beside it they are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.plan.margins import MOST_HITS
from prfaas.plan.plan import Plan
from prfaas.plan.report import report

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


def test_what_there_is_has_the_figures_of_the_designs(paper: Plan, two_by_two: Plan) -> None:
    for plan in paper, two_by_two:
        exact, margins = plan.exact, plan.margins
        output = round(plan.inputs.workload.output)
        for one in margins.with_bandwidth(margins.links_bps), margins.with_output(output), margins.of(plan.site):
            assert one.prfaas == pytest.approx(exact.prfaas.rate, rel=1e-6)
            assert one.homogeneous == pytest.approx(exact.homogeneous.rate, rel=1e-9)
            assert (one.threshold, one.n_p, one.n_d) == (exact.prfaas.threshold, exact.prfaas.n_p, exact.prfaas.n_d)


def test_only_what_a_cache_saves_is_asked_over_fewer_bins(paper: Plan, two_by_two: Plan) -> None:
    for plan in paper, two_by_two:
        few, many = len(plan.margins.coarse.workload.lengths), len(plan.site.lengths)
        assert len(plan.margins.site.lengths) == many > few
        assert f"is asked over {few} bins of length, all else over {many}." in report(plan, plan.paper)
        assert plan.margins.with_hits(0.0).ratio == pytest.approx(plan.margins.of(plan.site).ratio, rel=0.01)


def test_how_far_was_looked_is_said(paper: Plan) -> None:
    """Nothing above `MOST_HITS` was asked."""
    assert paper.break_even.hits is None
    (line,) = [one for one in report(paper, paper.paper).splitlines() if "once a cache saves" in one]
    assert line.endswith(f"  not up to {MOST_HITS * 100:.0f} %")


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
