"""Pictures: all are drawn, the same each time; without matplotlib one clear error."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from prfaas.core.errors import ConfigError
from prfaas.plan.plan import Plan
from prfaas.plan.plots import draw_all

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
