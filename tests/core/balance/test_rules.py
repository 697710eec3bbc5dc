"""The rules on any cluster: at most a step, never below a minimum, and a rule with a margin comes to rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Traffic
from prfaas.core.balance.outlook import Outlook
from prfaas.core.balance.rivals import Ratio
from prfaas.core.balance.rules import Limits, Predictive, Rule, Situation, expected
from prfaas.core.throughput.lengths import histogram

CONVERSION_NS = 2 * MINUTE_NS


@st.composite
def outlooks(draw: st.DrawFn) -> tuple[Outlook, int]:
    """Of any linear costs, lengths and counts; and how many nodes there are."""
    counts = draw(st.dictionaries(st.integers(1, 400), st.integers(1, 9), min_size=1, max_size=8))
    slope, far_slope = draw(st.floats(0, 0.05)), draw(st.floats(0, 0.05))
    answer_s = draw(st.floats(0.01, 20))
    lengths = histogram(counts.items())
    nodes, remote = draw(st.integers(2, 12)), draw(st.integers(0, 4))
    requests = draw(st.integers(1, 10**6))
    links = (draw(st.sampled_from([0.0, 500.0, 5000.0, 1e6])),)
    traffic = Traffic(lengths, lengths.tokens, requests, 1.0, 10.0, draw(st.floats(0, 0.2)), links)
    hardware = Hardware(
        lambda u, _: 0.1 + slope * u, (lambda u, _: 0.1 + far_slope * u,), lambda *_: answer_s, lambda u: 50 + u
    )
    return Outlook(traffic, hardware, nodes, (remote,)), nodes


RULES = st.sampled_from([Predictive(), Predictive(margin=0.0, drift=0.0), Ratio(), Ratio(band=0.2)])


@given(outlooks(), RULES, st.data())
def test_at_most_a_step_and_never_below_a_minimum(case: tuple[Outlook, int], rule: Rule, data: st.DataObject) -> None:
    outlook, nodes = case
    limits = Limits(data.draw(st.integers(0, nodes - 1)), 1)
    n_p = data.draw(st.integers(limits.prefill, nodes - limits.decode))
    found = rule.judge(outlook, Situation(n_p, nodes - n_p, limits, CONVERSION_NS))
    assert found.step in (-1, 0, 1)
    assert limits.prefill <= n_p + found.step <= nodes - limits.decode
    assert (found.why == "better") == (found.step != 0)
    assert limits.prefill <= found.target <= nodes - limits.decode


@settings(max_examples=60)
@given(outlooks(), st.floats(0, 0.3), st.data())
def test_it_walks_one_way_and_rests_within_the_margin(
    case: tuple[Outlook, int], margin: float, data: st.DataObject
) -> None:
    outlook, nodes = case
    rule, limits = Predictive(margin=margin), Limits()
    n_p = data.draw(st.integers(1, nodes - 1))
    steps = []
    while (step := rule.judge(outlook, Situation(n_p, nodes - n_p, limits, CONVERSION_NS)).step) and len(steps) < nodes:
        steps.append(step)
        n_p += step
    assert len(set(steps)) <= 1
    assert len(steps) < nodes
    spread = (rule.drift**2 + outlook.noise**2) ** 0.5
    best = max(expected(outlook, n, nodes - n, spread) for n in range(1, nodes))
    need = max(margin, rule.sigmas * outlook.noise)
    # What a conversion costs is at most all that there is, for 2 of the 60 minutes of the horizon.
    assert best <= expected(outlook, n_p, nodes - n_p, spread) * (1 + need + 2 / 60) + 1e-12


@given(outlooks())
def test_without_doubt_the_target_is_the_best_of_all(case: tuple[Outlook, int]) -> None:
    outlook, nodes = case
    every = {n: expected(outlook, n, nodes - n, 0.0) for n in range(1, nodes)}
    assert every == pytest.approx({n: outlook.rate(n, nodes - n) for n in range(1, nodes)})
    found = Predictive(drift=0.0).judge(outlook, Situation(1, nodes - 1, Limits(), CONVERSION_NS))
    spread = outlook.noise
    worth = {n: expected(outlook, n, nodes - n, spread) for n in range(1, nodes)}
    assert worth[found.target] == max(worth.values())
    assert found.best_rps == outlook.rate(found.target, nodes - found.target)


@given(outlooks(), st.integers(1, 5))
def test_a_threshold_of_the_outlook_gives_its_rate(case: tuple[Outlook, int], n_p: int) -> None:
    outlook, _ = case
    assert outlook.prefill_at(outlook.threshold(n_p), n_p) == pytest.approx(outlook.prefill(n_p))
    assert all(outlook.prefill_at(t, n_p) <= outlook.prefill(n_p) * (1 + 1e-9) for t in (0, 7, 100, 1000))


def even(nodes: int, decode_s: float = 1.0, requests: int = 10**6, error: float = 0.0) -> Outlook:
    """One length; a prefill node does one request a second, a decode node `1 / decode_s`; nobody far away."""
    lengths = histogram([(10, 1.0)])
    hardware = Hardware(lambda *_: 1.0, (), lambda *_: decode_s, lambda u: u)
    return Outlook(Traffic(lengths, lengths.tokens, requests, 1.0, 10.0, error, ()), hardware, nodes, ())


def test_the_edge_of_a_cliff_is_worth_less_than_a_plateau() -> None:
    outlook = even(8)
    assert outlook.rate(4, 4) == 4.0
    assert expected(outlook, 4, 4, 0.1) == pytest.approx(4 * (1 - 3**0.5 * 0.1 / 6))
    assert expected(outlook, 3, 5, 0.1) == 3.0


def test_a_step_that_undoes_the_last_one_needs_more_for_a_while() -> None:
    rule = Predictive(drift=0.0, margin=0.2, back=0.5)
    assert rule.judge(even(8), Situation(3, 5, Limits(), CONVERSION_NS)).why == "better"
    for last, minutes, why in ((-1, 60, "rest"), (-1, 121, "better"), (1, 60, "better")):
        found = rule.judge(even(8), Situation(3, 5, Limits(), CONVERSION_NS, last, minutes * MINUTE_NS))
        assert (found.why, found.step) == (why, int(why == "better"))
    assert rule.judge(even(8), Situation(4, 4, Limits(), CONVERSION_NS)).why == "best"


def test_what_a_conversion_costs_is_taken_off() -> None:
    """Who gives a node has more than it needs, by what was measured; what it may need after all is what it costs."""
    sure, unsure = Predictive(drift=0.0), Predictive(drift=0.3)
    short, long = (Situation(3, 5, Limits(), ns) for ns in (0, 30 * MINUTE_NS))
    assert sure.judge(even(8), short).gain == sure.judge(even(8), long).gain == pytest.approx(1 / 3)
    have, during = expected(even(8), 3, 5, 0.3), expected(even(8), 3, 4, 0.3)
    gain = unsure.judge(even(8), short).gain - unsure.judge(even(8), long).gain
    assert gain == pytest.approx((have - during) / have / 2, rel=1e-3)
    assert gain > 0.01


def test_the_paper_compares_prefill_with_decode() -> None:
    outlook = even(9)
    assert Ratio().judge(outlook, Situation(4, 5, Limits(), 0)).step == 1
    assert Ratio().judge(outlook, Situation(5, 4, Limits(), 0)).step == -1
    assert Ratio(band=0.3).judge(outlook, Situation(4, 5, Limits(), 0)).why == "margin"
    assert Ratio().judge(outlook, Situation(1, 8, Limits(1, 8), 0)).why == "minimum"
