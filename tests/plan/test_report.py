"""The report in words: the sections are there, and the verdict says what the figures say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from prfaas.plan.plan import Plan
from prfaas.plan.report import _asked, report
from prfaas.plan.verdict import _promises, _threshold, verdict
from prfaas.plan.words import bits, change, count, number, percent, table, times, tokens, wrapped

from .conftest import TWO_BY_TWO, plan_of


@pytest.mark.parametrize("formulas", ["paper", "exact"])
def test_every_section_is_there(paper: Plan, formulas: str) -> None:
    text = report(paper, getattr(paper, formulas))
    for title in (
        "Designs, each at its best",
        "Where it stops paying",
        "Sensitivity to bandwidth",
        "Sensitivity to the length of answers",
        "What these figures rest on",
        "Verdict",
    ):
        assert f"\n{title}" in text
    assert "no queue, no transfer, no round trip" in text
    assert "Fitted to Table 6" in text
    assert "derived from Table 6" in text
    assert max(map(len, text.splitlines())) <= 120


def test_how_far_the_formulas_differ_is_shown(paper: Plan) -> None:
    text = report(paper, paper.paper)
    (line,) = [line for line in text.splitlines() if "differs by" in line]
    change_of_first = paper.exact.prfaas.rate / paper.paper.prfaas.rate - 1
    assert f"{change_of_first * 100:+.1f} %" in line


def test_the_verdict_of_the_paper(paper: Plan) -> None:
    said = " ".join(verdict(paper))
    assert "PrfaaS brings more throughput: 3.16 requests a second against 2.02" in said
    assert "Without prices this says nothing of money" in said
    assert "the threshold adds +1." in said
    assert "below 3.95 Gbps over all links the gain is gone" in said


def test_the_verdict_with_prices_and_promises(two_by_two: Plan) -> None:
    said = " ".join(verdict(two_by_two))
    exact = two_by_two.exact
    word = "meets" if exact.prfaas.ttft_p90_s <= 5 else "misses"
    assert f"prfaas {word} it" in said
    assert "homogeneous misses it" in said
    assert "4.5 requests a second come: prfaas is enough" in said
    assert "A million tokens costs" in said


def test_the_verdict_when_it_does_not_pay(changed: Callable[..., Path]) -> None:
    plan = plan_of(changed(("model: paper-1t", "model: MiniMax-M2.5"), ("100Gbps", "10Gbps")))
    said = list(verdict(plan))
    assert said[0].startswith("PrfaaS brings nothing in throughput")
    assert any("over all links there would be a gain" in line for line in said)
    assert not any("the threshold adds" in line for line in said)


def test_what_costs_as_much_costs_not_more(changed: Callable[..., Path]) -> None:
    """A line that carries nothing, and PrfaaS nodes for nearly nothing."""
    far, home = ("nodes: 4", "nodes: 4\n    price: 0.01"), ("nodes: 8 ", "price: 10000\n    nodes: 8 ")
    said = " ".join(verdict(plan_of(changed(("100Gbps", "1bps"), far, home))))
    assert "+0.0 %: as much as " in said


@pytest.mark.parametrize(
    ("blind", "words"),
    [
        (
            4.04,
            "A threshold is not what brings it: the same clusters without a threshold, "
            "each request anywhere, do 4.04 at",
        ),
        (3.1607, "Most of it is more and faster prefill: the same clusters"),
        (3.1607, "the threshold adds nothing in steady throughput"),
        (3.0, "Most of it is more and faster prefill: the same clusters"),
        (3.0, "the threshold adds +5.4 % in steady throughput"),
        (2.2, "Most of it is the threshold: the same clusters"),
    ],
)
def test_what_the_threshold_brings_is_said_as_it_is(paper: Plan, blind: float, words: str) -> None:
    exact = paper.exact
    assert exact.prfaas.rate == pytest.approx(3.1607, rel=1e-4)
    own, same = (replace(one, rate=blind) for one in (exact.balanced_own, exact.balanced))
    plan = Plan(paper.inputs)
    plan.__dict__.update(exact=replace(exact, balanced_own=own, balanced=same), bound=paper.bound)
    said = " ".join(_threshold(plan))
    assert words in said
    assert "adds -" not in said
    assert ("by load here, not by length" in said) == (blind > 4)


def test_a_decode_step_that_nobody_measured_is_marked(changed: Callable[..., Path]) -> None:
    plan = plan_of(changed(("decode_batch: 20", "decode_batch: 30")))
    text = report(plan, plan.paper)
    assert "home: a decode step of 30 sequences lies outside the points of paper-h20" in text


@pytest.mark.parametrize(("tpot", "word"), [("24ms", "misses"), ("25ms", "meets"), ("1ms", "misses")])
def test_a_batch_that_is_given_is_judged(changed: Callable[..., Path], tpot: str, word: str) -> None:
    plan = plan_of(changed(("tpot: 25ms", f"tpot: {tpot}")))
    assert f"TPOT of {tpot}, by the decode step: home {word} it (25.00 ms with a batch of 20)." in list(_promises(plan))
    text = _asked(plan.inputs)
    assert "decode batch 20, 25.00 ms a token" in text
    assert (": TPOT missed" in text) == (word == "misses")


def test_without_a_promise_nothing_is_judged(changed: Callable[..., Path]) -> None:
    plan = plan_of(changed(("slo:\n  tpot: 25ms\n", "")))
    assert list(_promises(plan)) == []
    assert "TPOT" not in _asked(plan.inputs)


def test_shares_by_nodes_are_said(two_by_two: Plan, tmp_path: Path) -> None:
    assert "by their nodes" not in _asked(two_by_two.inputs)
    path = tmp_path / "plan.yaml"
    path.write_text(TWO_BY_TWO.read_text().replace(", share: 0.6", "").replace(", share: 0.4", ""))
    plan = plan_of(path)
    assert [home.share for home in plan.site.homes] == [8 / 14, 6 / 14]
    assert "share    by their nodes: a node more also draws traffic to its cluster" in _asked(plan.inputs)


def test_who_does_what_is_said_of_several_clusters(two_by_two: Plan, paper: Plan) -> None:
    text = report(two_by_two, two_by_two.paper)
    assert "Who does what (exact)" in text
    assert "Who does what" in text
    assert "Who does what" not in report(paper, paper.paper)


def test_numbers_as_people_read_them() -> None:
    assert [tokens(19563), tokens(0), tokens(999), tokens(None)] == ["19.6K", "0", "999", "-"]
    assert [number(1.0), number(1234.5), number(None)] == ["1.00", "1,234", "-"]
    assert [percent(0.496, 1), change(1.54), change(0.9)] == ["49.6 %", "+54.0 %", "-10.0 %"]
    assert [bits(13e9), bits(1.8e12), bits(2.5e6), bits(3), bits(None)] == [
        "13 Gbps",
        "1.8 Tbps",
        "2.5 Mbps",
        "3 bps",
        "-",
    ]
    assert [number(0.00312), number(0.04), number(0.7), number(-0.0), number(3e-5), number(1e-12)] == [
        "0.0031",
        "0.040",
        "0.70",
        "0.00",
        "0.000030",
        "1e-12",
    ]
    assert [change(0.9999), change(1.0), change(43.21), change(12345.6)] == ["+0.0 %", "+0.0 %", "43.2x", "12,346x"]
    assert [percent(-0.0001), percent(-0.0001, 1), times(0.86), times(12.3)] == ["0 %", "0.0 %", "86 % of", "12 times"]
    assert [bits(999.6), bits(313517)] == ["1 Kbps", "314 Kbps"]
    assert [bits(999.7e6), bits(999.2e6), bits(1234e12)] == ["1 Gbps", "999 Mbps", "1234 Tbps"]
    assert [count(1, "node"), count(0, "node"), count(8, "node")] == ["1 node", "0 nodes", "8 nodes"]
    assert table([["a", "b"], ["cc", "10"]], "") == "a    b\ncc  10"
    assert wrapped("x " * 100).count("\n") == 1
