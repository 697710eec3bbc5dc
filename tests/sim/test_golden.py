"""Decision logs that must not change by accident: every policy on one named scenario with a slow link and a lost node.

After a change of policy that is meant: `python -m tests.sim.test_golden`, and read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prfaas.core.routing.catalog import NAMES
from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan
from prfaas.sim.fromplan import Planned, planned
from prfaas.sim.run import Run, perform
from prfaas.sim.scenario import read_scenario

HERE = Path(__file__).parent / "golden"
SCENARIO = HERE / "scenario.yaml"
ROOT = Path(__file__).parents[2]
DURATION_NS = 40 * 10**9


def decided(paper: Planned, name: str) -> list[Any]:
    """Milliseconds, number, cluster, reason of each decision."""
    log: list[Any] = []
    scenario = read_scenario(SCENARIO, paper.setup)
    run = Run(paper, scenario, name, 3, 3.0, DURATION_NS)
    perform(run, lambda now, number, cluster, reason, scores: log.append([now // 10**6, number, cluster, reason]))
    return log


@pytest.mark.parametrize("name", NAMES)
def test_the_log_is_the_stored_one(paper: Planned, name: str) -> None:
    stored = json.loads((HERE / f"{name}.json").read_text())
    assert decided(paper, name) == stored


def write() -> None:
    """Store what is decided now."""
    said, document = read_plan(ROOT / "examples" / "paper.yaml")
    paper = planned(Plan(read_inputs(said, document)))
    for name in NAMES:
        rows = ",\n".join(json.dumps(row) for row in decided(paper, name))
        (HERE / f"{name}.json").write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    write()
