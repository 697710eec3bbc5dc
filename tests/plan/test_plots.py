"""Pictures: all are drawn, the same each time, no line through words; without matplotlib one clear error."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from prfaas.core.errors import ConfigError
from prfaas.plan.plan import Plan
from prfaas.plan.plots import draw_all, over_bandwidth, over_prefill_nodes, over_threshold

from .conftest import plan_of

NAMES = {"lambda-over-threshold", "lambda-over-prefill-nodes", "lambda-over-bandwidth", "kv-throughput"}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["svg", "png"])
def test_all_are_drawn(paper: Plan, tmp_path: Path, kind: str) -> None:
    made = draw_all(paper, tmp_path / "new" / "plots", kind)
    assert {path.stem for path in made} == NAMES
    head = {"svg": b"<?xml", "png": b"\x89PNG"}[kind]
    assert all(path.read_bytes().startswith(head) and path.stat().st_size > 10_000 for path in made)


@pytest.mark.slow
def test_the_same_plan_gives_the_same_pictures(two_by_two: Plan, tmp_path: Path) -> None:
    first, second = (draw_all(two_by_two, tmp_path / name) for name in "ab")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_without_matplotlib_it_says_what_to_install(
    paper: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'prfaas\[plots\]'"):
        draw_all(paper, tmp_path / "plots")
    assert not (tmp_path / "plots").exists()


def drawn(plan: Plan, draw: Callable[[Plan, Any], None]) -> tuple[Any, list[Any]]:
    """A picture's axes, and where its words are, in pixels."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure, axes = pyplot.subplots(figsize=(8.2, 4.2), layout="constrained")
    draw(plan, axes)
    figure.canvas.draw()
    words = pytest.importorskip("matplotlib.text").Text
    boxes = [words.get_window_extent(text) for text in axes.texts]  # without its arrow
    pyplot.close(figure)
    return axes, boxes


def across(axes: Any, box: Any) -> list[str]:
    """The lines that come through a box."""
    found = []
    for line in axes.lines:
        points = line.get_transform().transform(line.get_xydata())
        steps = [part / 50 for part in range(51)]
        for (ax, ay), (bx, by) in pairwise(points.tolist()):
            if any(box.contains(ax + (bx - ax) * part, ay + (by - ay) * part) for part in steps):
                found.append(line.get_label())
                break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("gbps", [4, 11, 13, 20, 100])
def test_no_line_comes_through_words(changed: Callable[..., Path], gbps: int) -> None:
    plan = plan_of(changed(("100Gbps", f"{gbps}Gbps")))
    axes, (label,) = drawn(plan, over_threshold)
    assert across(axes, label) == []
    axes, boxes = drawn(plan, over_bandwidth)
    assert len(boxes) == 2
    assert not boxes[0].overlaps(boxes[1])
    for box in boxes:
        assert f"now: {gbps} Gbps" not in across(axes, box)


@pytest.mark.slow
def test_many_nodes_have_one_mark(changed: Callable[..., Path]) -> None:
    few, _ = drawn(plan_of(changed()), over_prefill_nodes)
    assert (few.lines[0].get_marker(), len(few.texts)) == ("o", 8)
    plan = plan_of(changed(("nodes: 8 ", "nodes: 790 "), ("nodes: 4", "nodes: 300"), ("100Gbps", "2Tbps")))
    many, _ = drawn(plan, over_prefill_nodes)
    assert (many.lines[0].get_marker(), many.lines[1].get_marker(), len(many.texts)) == ("None", "o", 0)
    assert len(many.lines[0].get_xdata()) <= 60
    assert many.lines[1].get_xdata()[0] == sum(plan.exact.prfaas.n_p)
