"""Plans for tests: the paper's, and files written on the spot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan

ROOT = Path(__file__).parents[2]
PAPER, TWO_BY_TWO = ROOT / "examples" / "paper.yaml", ROOT / "examples" / "plan-two-by-two.yaml"


def plan_of(path: Path) -> Plan:
    """The plan in a file."""
    said, document = read_plan(path)
    return Plan(read_inputs(said, document))


@pytest.fixture(scope="session")
def paper() -> Plan:
    return plan_of(PAPER)


@pytest.fixture(scope="session")
def two_by_two() -> Plan:
    return plan_of(TWO_BY_TWO)


@pytest.fixture
def changed(tmp_path: Path) -> Callable[..., Path]:
    """The paper's plan file with pieces of text replaced."""

    def write(*pairs: tuple[str, str]) -> Path:
        text = PAPER.read_text()
        for old, new in pairs:
            assert old in text, old
            text = text.replace(old, new)
        path = tmp_path / "plan.yaml"
        path.write_text(text)
        return path

    return write
