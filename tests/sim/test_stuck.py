"""What can never end, and faults that did nothing, are told: in JSON, in words, on the page."""

from __future__ import annotations

from dataclasses import replace

from prfaas.sim.answer import simulate_answer
from prfaas.sim.fromplan import Planned
from prfaas.sim.page import report_page
from prfaas.sim.run import Run, highest_rate, perform
from prfaas.sim.scenario import FaultEntry, Scenario
from prfaas.sim.words import simulate_words

from .conftest import SECOND_NS

LATE = FaultEntry(kind="service_down", cluster="far", at_ns=99 * SECOND_NS, lasts_ns=SECOND_NS)  # type: ignore[arg-type]


def test_requests_that_never_end_and_late_faults_are_told(paper: Planned) -> None:
    lossy = Scenario(loss=1 - 1e-15, faults=(LATE,))  # of 100 Gbps nothing is left
    outcome = perform(Run(paper, lossy, "remote", 1, 1.0, 60 * SECOND_NS))
    said, note = (
        simulate_answer(outcome),
        "service_down far at 99 s begins when no requests come any more, from 60 s on",
    )
    assert said.stuck == said.arrived - said.completed > 0
    assert said.notes == (note,)
    words, page = simulate_words(outcome), report_page(outcome)
    assert f"{said.stuck} requests can never end" in words
    assert f"{said.stuck} can never end" in page
    assert note in words
    assert note in page


def test_where_all_end_nothing_is_said(paper: Planned) -> None:
    outcome = perform(Run(paper, Scenario(), "ours", 1, 1.0, 60 * SECOND_NS))
    said = simulate_answer(outcome)
    assert (said.stuck, said.notes) == (0, ())
    assert "never end" not in simulate_words(outcome) + report_page(outcome)


def test_a_rate_at_which_some_never_end_is_not_sustained(paper: Planned) -> None:
    run = Run(paper, Scenario(loss=1 - 1e-15), "remote", 1, 1.0, 60 * SECOND_NS)
    assert highest_rate(run, lambda outcome: True, steps=2).met is None
    assert highest_rate(replace(run, scenario=Scenario()), lambda outcome: True, steps=2).met is not None
