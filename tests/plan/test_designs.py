"""Designs: what each may use, what it costs, and what several clusters change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.core.throughput.split import Splits
from prfaas.plan.grown import grown
from prfaas.plan.money import egress_per_request, price_per_hour
from prfaas.plan.plan import Compared, Plan
from prfaas.plan.report import report
from prfaas.plan.verdict import verdict

from .conftest import plan_of


@pytest.fixture(params=["paper", "exact"])
def formulas(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def compared(plan: Plan, formulas: str) -> Compared:
    found: Compared = getattr(plan, formulas)
    return found


def test_no_stage_is_used_beyond_its_capacity(paper: Plan, two_by_two: Plan, formulas: str) -> None:
    for plan in (paper, two_by_two):
        for design in (*compared(plan, formulas).all(), compared(plan, formulas).balanced_own):
            assert max(design.used.values()) <= 1 + 1e-3, design.name
            assert design.used[design.binding] == pytest.approx(1, abs=1e-3), design.name


def test_no_design_exceeds_the_bound(two_by_two: Plan) -> None:
    exact = two_by_two.exact
    for design in (exact.prfaas, exact.naive, exact.balanced, exact.balanced_own):
        assert design.rate <= two_by_two.bound * (1 + 1e-6)


def test_homogeneous_has_as_many_accelerators(two_by_two: Plan, formulas: str) -> None:
    same = compared(two_by_two, formulas).homogeneous
    assert sum(home.nodes for home in same.site.homes) * 8 == two_by_two.gpus == 160


def test_same_cost_spends_at_most_as_much(two_by_two: Plan, formulas: str) -> None:
    found = compared(two_by_two, formulas)
    assert found.same_cost is not None
    ours, theirs = (price_per_hour(one, two_by_two.inputs) for one in (found.prfaas, found.same_cost))
    assert ours == 3 * 36 + 3 * 33 + 14 * 14
    assert theirs is not None
    spent = ours + 3600 * found.prfaas.rate * egress_per_request(found.prfaas, two_by_two.inputs)
    assert spent - 14 < theirs <= spent


def test_cost_agrees_with_rates_of_equal_cost(two_by_two: Plan) -> None:
    """What costs as much and serves less costs more a token."""
    exact = two_by_two.exact
    assert exact.same_cost is not None
    ours, theirs = two_by_two.cost(exact.prfaas), two_by_two.cost(exact.same_cost)
    assert ours is not None
    assert theirs is not None
    assert (ours < theirs) == (exact.prfaas.rate > exact.same_cost.rate)


def test_a_priced_line_counts(two_by_two: Plan) -> None:
    best = two_by_two.exact.prfaas
    gigabytes = best.egress_bps / best.rate / 8e9
    assert 0.001 * gigabytes < egress_per_request(best, two_by_two.inputs) < 0.002 * gigabytes


def test_grown_homes_are_the_best_of_all_ways(two_by_two: Plan) -> None:
    site = two_by_two.site
    splits = Splits(site, "exact")
    whole = splits.at(len(site.lengths)).whole_s

    def rate(nodes: tuple[int, ...]) -> float:
        return min(
            max(min(n / s, (k - n) * home.decode_rate) for n in range(k)) / home.share
            for k, home, s in zip(nodes, site.homes, whole, strict=True)
        )

    found = grown(site, splits, 20, [1, 1])
    assert sum(found) == 20
    assert rate(found) == pytest.approx(max(rate((a, 20 - a)) for a in range(1, 20)))


def test_wider_clusters_of_gpus_count_as_more(changed: Callable[..., Path]) -> None:
    path = changed(("nodes: 4\n    gpus: 8", "nodes: 4\n    gpus: 16"))
    found = plan_of(path)
    assert found.gpus == 128
    assert found.exact.homogeneous.site.homes[0].nodes == 16


def test_a_dense_model_does_not_pay_over_a_thin_line(changed: Callable[..., Path]) -> None:
    """MiniMax-M2.5 makes 8.6 GB at 32K: over 10 Gbps nearly nothing can leave."""
    path = changed(("model: paper-1t", "model: MiniMax-M2.5"), ("100Gbps", "10Gbps"))
    found = plan_of(path)
    assert found.exact.prfaas.rate < found.exact.homogeneous.rate
    assert found.exact.naive.binding == "link"
    assert found.exact.naive.used["link"] == pytest.approx(1)


LINK = "  - {from: far, to: home, bandwidth: 100Gbps, rtt: 5ms}\n"
FAR = "  far:\n    kind: prfaas\n    profile: paper-h200\n    nodes: 4\n    gpus: 8\n"


@pytest.mark.parametrize("gbps", [(1, 1, 1, 1), (1, 2, 4, 50), (1, 50, 50, 50), (50, 50, 50, 50), (3, 3, 4, 5)])
def test_with_several_clusters_what_is_the_limit_is_full(
    changed: Callable[..., Path], gbps: tuple[int, ...], formulas: str
) -> None:
    """Where some clusters compute all the time and others wait for thin links, both are the limit, and both are full:
    nothing that is the limit has any to spare."""
    fars = "".join(FAR.replace("far:", f"far{at}:").replace("nodes: 4", "nodes: 2") for at in range(len(gbps)))
    links = "".join(LINK.replace("far", f"far{at}").replace("100Gbps", f"{g}Gbps") for at, g in enumerate(gbps))
    found = plan_of(changed((FAR, fars), (LINK, links), ("nodes: 8 ", "nodes: 24 ")))
    for design in (*compared(found, formulas).all(), compared(found, formulas).balanced_own):
        assert design.binding == design.limits[0]
        assert max(design.used.values()) <= 1 + 1e-5
        for stage in design.limits:
            assert design.used[stage] == pytest.approx(1, abs=1e-5), (design.name, stage)
    naive = compared(found, formulas).naive
    kinds = {"link"} if min(gbps) < 50 else set()
    assert set(naive.limits) == kinds | ({"prfaas"} if max(gbps) == 50 else set())


def test_the_verdict_names_what_is_full(changed: Callable[..., Path]) -> None:
    fars = FAR.replace("far:", "a:") + FAR.replace("far:", "b:")
    links = LINK.replace("far", "a").replace("100", "1") + LINK.replace("far", "b")
    found = plan_of(changed((FAR, fars), (LINK, links), ("nodes: 8 ", "nodes: 24 "), ("output: 1024", "output: 128")))
    (line,) = [one for one in verdict(found) if one.startswith("The limit is")]
    assert line.startswith("The limit is PrfaaS prefill (b) and the link (a -> home); to spare: ")
    text = report(found, found.exact)
    names, values, *_ = [one.split() for one in text.splitlines() if one.startswith(("  limit  ", "    and  "))]
    assert (names[1:3], values[1]) == (["PrfaaS", "prefill"], "link")
    (busy,) = [part for part in text.split("\n\n") if part.startswith("How busy each is")]
    rows = {row.split()[0]: row.split() for row in busy.splitlines()[2:]}
    assert rows["b"][1] == rows["a"][-2] == "100"
    assert int(rows["a"][1]) < 90


@pytest.mark.parametrize("line", ["", ", price: 0"])
def test_the_least_price_is_a_price(changed: Callable[..., Path], line: str) -> None:
    """A line that costs nothing is one, too."""
    path = changed(
        ("nodes: 4\n", "nodes: 4\n    price: 0.01\n"),
        ("nodes: 8 ", "price: 0.01\n    nodes: 8 "),
        ("5ms}", f"5ms{line}}}"),
    )
    found = plan_of(path)
    assert found.exact.same_cost is not None
    assert found.exact.same_cost.rate == pytest.approx(found.exact.homogeneous.rate)
    said = list(verdict(found))
    assert any(one.startswith("A million tokens costs") for one in said)
    assert not any("Without prices" in one for one in said)
