"""The report in a real browser: every chart shows what it draws, no text is cut or covers another, nothing complains.

Chromium renders the page without a display and answers with what a script of the test, which is put into a copy of the
page, measured there. The copy is in a frame, for no window of Chromium's is as narrow as a phone.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from prfaas.config.units import Duration, Timeout
from prfaas.sim.fromplan import Planned
from prfaas.sim.page import POLICY, report_page
from prfaas.sim.run import Run, perform
from prfaas.sim.scenario import Balanced, FaultEntry, Scenario

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on PATH to render the page in"),
]
NAME = "far-<b>away</b>&-with-a-name-that-is-long"
MEASURE = """
const box = one => { const r = one.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] };
const seen = one => { const s = getComputedStyle(one); return s.stroke !== "none" || s.fill !== "none" };
const charts = [...document.querySelectorAll("svg[role=img]")].map(svg => ({
  title: svg.getAttribute("aria-label"), box: box(svg),
  marks: [...svg.querySelectorAll(".line, .bar")].filter(seen).map(box),
  texts: [...svg.querySelectorAll("text")].map(one => [one.firstChild.data, box(one)]),
}));
const page = [document.documentElement.scrollWidth, window.innerWidth];
parent.document.title = JSON.stringify({charts, page, bold: document.querySelectorAll("b").length});
"""
Box = list[float]


@pytest.fixture(scope="module")
def page(paper: Planned) -> str:
    """Of a run with everything that a page can show, and a name that is hard to show."""
    home, far = paper.setup.clusters
    lopsided = replace(paper.setup, clusters=(replace(home, prefill=1, decode=7), replace(far, name=NAME)))
    wrong = FaultEntry(kind="link", cluster=NAME, target="home", at_ns=Duration(2 * 10**11), lasts_ns=Timeout(10**11))
    scenario = Scenario(balance=Balanced(every_ns=Timeout(60 * 10**9)), faults=(wrong,))
    return report_page(perform(Run(replace(paper, setup=lopsided), scenario, "ours", 1, 2.0, 900 * 10**9)))


def measured(page: str, width: int, folder: Path) -> dict[str, Any]:
    """What the script found where there is so much width."""
    assert BROWSER is not None
    copy = page.replace(POLICY, f"{POLICY}; script-src 'nonce-t'")
    copy = copy.replace("</body>", f'<script nonce="t">{MEASURE}</script></body>')
    file = folder / "page.html"
    frame = f'<iframe style="width: {width}px; height: 3000px; border: 0" srcdoc="{escape(copy)}"></iframe>'
    file.write_text(f'<!doctype html><meta charset="utf-8"><title></title>{frame}', encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    options += [f"--user-data-dir={folder / 'profile'}", "--window-size=1500,3000", "--enable-logging=stderr"]
    done = subprocess.run(
        [BROWSER, *options, "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=100, check=True
    )
    assert "CONSOLE" not in done.stderr
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL)
    assert title is not None
    found: dict[str, Any] = json.loads(unescape(title[1]))
    return found


def inside(inner: Box, outer: Box) -> bool:
    return all(a >= b - 1 for a, b in zip(inner[:2], outer[:2], strict=True)) and all(
        a <= b + 1 for a, b in zip(inner[2:], outer[2:], strict=True)
    )


def apart(one: Box, other: Box) -> bool:
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] + 1 or other[3] <= one[1] + 1


@pytest.mark.parametrize("width", [1400, 400])
def test_charts_show_what_they_draw(page: str, width: int, tmp_path: Path) -> None:
    found = measured(page, width, tmp_path)
    assert found["page"][0] <= found["page"][1] == width
    assert found["bold"] == 0
    assert len(found["charts"]) == 7
    for chart in found["charts"]:
        assert chart["marks"], chart["title"]
        for mark in chart["marks"]:
            assert inside(mark, chart["box"]), chart["title"]
            assert mark[2] - mark[0] > 0.5 or mark[3] - mark[1] > 0.5, chart["title"]
        assert max(mark[2] - mark[0] for mark in chart["marks"]) > 0.2 * (chart["box"][2] - chart["box"][0])
        texts = chart["texts"]
        for at, (text, box) in enumerate(texts):
            assert inside(box, chart["box"]), (chart["title"], text)
            assert box[3] - box[1] >= 9, (chart["title"], text)
            for other, covered in texts[:at]:
                assert apart(box, covered), (chart["title"], text, other)
