"""The report: one well-formed page that needs nothing else; charts have round ticks."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prfaas.config.units import Timeout
from prfaas.core.errors import ConfigError
from prfaas.sim.charts import bars, lines
from prfaas.sim.fromplan import Planned
from prfaas.sim.page import report_page, write_report
from prfaas.sim.run import Outcome, Run, perform
from prfaas.sim.scenario import Balanced, Scenario

VOID = {"meta"}


@pytest.fixture(scope="module")
def outcome(paper: Planned) -> Outcome:
    return perform(Run(paper, Scenario(), "ours", 1, 2.5, 120 * 10**9))


class Nesting(HTMLParser):
    """Which tags are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def test_the_page_is_whole_and_needs_nothing_else(outcome: Outcome) -> None:
    page = report_page(outcome)
    nesting = Nesting()
    nesting.feed(page)
    assert nesting.open == []
    assert not re.search(r"https?://|src=|<script|<link", page)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 6
    for chart in charts:
        ElementTree.fromstring(chart)
    for reason in outcome.tally.reasons:
        assert reason in page


def test_it_is_written_with_its_json(outcome: Outcome, tmp_path: Path) -> None:
    page = write_report(outcome, tmp_path / "new" / "report")
    assert page.read_text() == report_page(outcome)
    assert json.loads((page.parent / "simulate.json").read_text())["policy"] == "ours"
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="expected a directory to write the report to"):
        write_report(outcome, file)


def test_role_changes_are_shown(paper: Planned) -> None:
    scenario = Scenario(balance=Balanced(every_ns=Timeout(60 * 10**9)))
    home, far = paper.setup.clusters
    clusters = (replace(home, prefill=1, decode=7), far)
    lopsided = replace(paper, setup=replace(paper.setup, clusters=clusters))
    balanced = perform(Run(lopsided, scenario, "ours", 1, 2.0, 900 * 10**9))
    assert balanced.world.balance is not None
    assert balanced.world.balance.steps
    page = report_page(balanced)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 7
    for step in balanced.world.balance.steps:
        assert f"<th>{step.node}</th>" in page


def test_a_run_without_requests_has_a_page_too(paper: Planned) -> None:
    nothing = perform(replace(Run(paper, Scenario(), "ours", 1, 1e-6, 10**9)))
    assert "0 of 0 requests" in report_page(nothing)


def test_names_are_escaped_and_numbers_shown() -> None:
    chart = bars("A & B", [("<x>", 2.0), ("y", 1.0)])
    assert "A &amp; B" in chart
    assert "&lt;x&gt;" in chart
    assert bars("none", []) == lines("none", "x", "y", []) == ""


@pytest.mark.parametrize("most", [0.003, 1.0, 7.7, 23456.0])
def test_ticks_are_round_and_few(most: float) -> None:
    chart = lines("t", "x", "y", [("a", [(0.0, 0.0), (1.0, most)])])
    ticks = [float(text) for text in re.findall(r'text-anchor="end">([\d.e+-]+)<', chart)]
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert ticks[-1] <= most
