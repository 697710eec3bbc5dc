"""What is measured of a run: when it is cut short, overloaded, replayed at once, or empty."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.sim.conftest import PAPER, SECOND_NS

from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import Trace
from prfaas.plan.planreader import read_plan
from prfaas.sim.answer import compare_answer, simulate_answer
from prfaas.sim.fromplan import Planned, planned
from prfaas.sim.run import Outcome, Run, perform
from prfaas.sim.scenario import Scenario
from prfaas.sim.words import compare_words, simulate_words

HOUR = 3600


def cut(run: Run, at_s: float) -> Outcome:
    """The run until Ctrl-C at `at_s`."""

    def log(now_ns: int, *_: object) -> None:
        if now_ns > at_s * SECOND_NS:
            raise KeyboardInterrupt

    outcome = perform(run, log)
    assert outcome.world.interrupted
    return outcome


@pytest.mark.parametrize("at_s", [200, 1200])
def test_a_run_that_is_cut_short_is_measured_as_a_shorter_one(paper: Planned, at_s: int) -> None:
    """200 s are within the warm-up of an hour."""
    run = Run(paper, Scenario(), "ours", 1, 2.2, HOUR * SECOND_NS)
    early, whole = cut(run, at_s), perform(replace(run, duration_ns=at_s * SECOND_NS))
    found, expected = simulate_answer(early), simulate_answer(whole)
    # The warm-up ends where a piece begins, up to an eighth later; who was under way is missing.
    assert 0.8 * expected.measured < found.measured <= expected.measured
    assert found.ttft_s.mean == pytest.approx(expected.ttft_s.mean, rel=0.15)
    assert found.goodput_rps == pytest.approx(expected.goodput_rps, rel=0.05)
    assert found.egress_gbps.mean == pytest.approx(expected.egress_gbps.mean, rel=0.02)
    assert not found.saturated
    assert 0.1 * at_s * SECOND_NS <= early.tally.from_ns <= 0.1126 * at_s * SECOND_NS


def test_goodput_is_no_more_than_can_be_done(paper: Planned) -> None:
    """At twice the bound, without objectives, all requests are good once they end: those after the window are not."""
    run = Run(paper, Scenario(), "ours", 1, 2 * paper.bound, 1200 * SECOND_NS)
    goodput = perform(run).goodput
    assert goodput is not None
    assert 0.9 * paper.bound < goodput < 1.05 * paper.bound


@pytest.mark.parametrize(("load", "grows"), [(0.5, False), (0.95, False), (1.3, True)])
def test_queues_that_grow_are_told(paper: Planned, load: float, grows: bool) -> None:
    outcome = perform(Run(paper, Scenario(), "ours", 1, load * paper.bound, HOUR * SECOND_NS))
    assert simulate_answer(outcome).saturated is grows
    assert ("queues still grew" in simulate_words(outcome)) is grows


def test_all_at_once_counts_until_the_last_answer(paper: Planned, tmp_path: Path) -> None:
    """A trace without time between its rows: its work over the time that it takes."""
    file = tmp_path / "trace.jsonl"
    row = '{"timestamp": 0, "input_length": 4000, "output_length": 20, "hash_ids": [1, 2, 3, 4, 5, 6, 7, 8]}\n'
    file.write_text(50 * row)
    said, document = read_plan(PAPER)
    traffic = msgspec.structs.replace(said.traffic, lengths=Trace(file=str(file)), output=None)
    one = planned(Plan(read_inputs(msgspec.structs.replace(said, traffic=traffic), document)))
    outcome = perform(Run(one, Scenario(), "remote", 1, None, one.rows[-1].at_ns + 1, replay=True))
    assert outcome.goodput == pytest.approx(50 / (outcome.tally.last_ns / 1e9), rel=1e-6)
    assert outcome.egress_bps > 0
    assert not outcome.saturated


def test_what_was_not_measured_is_no_zero(paper: Planned) -> None:
    outcome = perform(Run(paper, Scenario(), "ours", 1, 1.0, 1))
    said = simulate_answer(outcome)
    assert (said.ttft_s.mean, said.ttft_s.p99, said.goodput_rps, said.offloaded, said.hit_share) == (None,) * 5
    text = simulate_words(outcome)
    assert "goodput - requests a second; prefilled away -; found in caches -" in text
    assert "first token                 -        -        -        -" in text
    row = compare_answer([[outcome]]).compared["ours"]["ttft_p90"]
    assert (row.mean, row.half, row.less, row.less_half) == (None,) * 4


def test_one_seed_has_no_interval(paper: Planned) -> None:
    runs = [perform(Run(paper, Scenario(), "ours", seed, 1.0, 60 * SECOND_NS)) for seed in (1, 2)]
    one, two = compare_answer([runs[:1]]), compare_answer([runs])
    assert one.compared["ours"]["ttft_mean"].half is None
    assert "±" not in compare_words(one)
    assert "(one seed: no interval)" in compare_words(one)
    assert two.compared["ours"]["ttft_mean"].half
    assert "(95 % confidence)" in compare_words(two)
