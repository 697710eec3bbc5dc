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
from prfaas.sim.charts import RIGHT, WIDTH, bars, lines
from prfaas.sim.fromplan import Planned
from prfaas.sim.page import report_page, write_report
from prfaas.sim.run import Outcome, Run, perform
from prfaas.sim.scenario import Balanced, Scenario

VOID = {"meta"}
CHART = r'<svg [^>]*role="img"'


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
    assert not re.search(r"https?://|src=|url\(|@import|<script|<link", page)
    assert "default-src 'none'" in page
    assert len(re.findall(CHART, page)) == 6
    for picture in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(picture)
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
    assert len(re.findall(CHART, page)) == 7
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


def test_long_names_are_cut_and_kept_in_full_beside() -> None:
    chart = bars("t", [("a-cluster-whose-name-never-seems-to-end", 3.0)])
    assert "<title>a-cluster-whose-name-never-seems-to-end</title>" in chart
    assert re.search(r">a-cluster-[\w-]*\N{HORIZONTAL ELLIPSIS}<", chart)


def test_faults_are_shaded_as_far_as_the_line_goes() -> None:
    row = [("a", [(0.0, 1.0), (10.0, 2.0)])]
    chart = lines("t", "x", "y", row, [(5.0, 99.0), (20.0, 30.0)], "a fault")
    shaded = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"[^>]*class="band"', chart)
    assert [float(x) + float(width) for x, width in shaded] == [WIDTH - RIGHT]
    assert "a fault" in chart
    assert "a fault" not in lines("t", "x", "y", row, [(20.0, 30.0)], "a fault")


@pytest.mark.parametrize("most", [0.003, 1.0, 7.7, 10.0, 23456.0, 3e9])
def test_ticks_are_round_few_and_above_every_point(most: float) -> None:
    chart = lines("t", "x", "y", [("a", [(0.0, 0.0), (1.0, most)])])
    ticks = [number(text) for text in re.findall(r'text-anchor="end">([\d.e+-]+[kMG]?)<', chart)]
    assert 3 <= len(ticks) <= 6
    assert ticks[0] == 0
    assert most * (1 - 1e-9) <= ticks[-1] <= 2 * most


def test_what_is_counted_has_no_halves_and_nothing_has_a_scale() -> None:
    for most, top in ((0.0, 1.0), (1.0, 1.0), (2.0, 2.0), (7.0, 8.0)):
        chart = lines("t", "x", "requests", [("a", [(0.0, 0.0), (1.0, most)])], until=2.0, counts=True)
        ticks = [number(text) for text in re.findall(r'text-anchor="end">([\d.e+-]+)<', chart)]
        assert ticks[-1] == top
        assert all(tick == int(tick) for tick in ticks)
        assert 'text-anchor="middle">2<' in chart


def number(text: str) -> float:
    units = {"k": 1e3, "M": 1e6, "G": 1e9}
    return float(text[:-1]) * units[text[-1]] if text[-1] in units else float(text)
