"""The topology that a plan writes, started: short prompts stay, long ones go away."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.e2e.system import System

from prfaas.plan.plan import Plan
from prfaas.plan.topologyfile import write_topology_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_it_starts_and_routes_by_the_planned_threshold(paper: Plan, tmp_path: Path) -> None:
    file = tmp_path / "topology.yaml"
    write_topology_file(paper, file)
    threshold = paper.exact.prfaas.threshold
    assert threshold is not None
    system = System.start(file, tmp_path / "state")
    try:
        with system.client() as client:
            routes = []
            for length in (threshold // 2, threshold * 2):
                raw = client.completions.with_raw_response.create(
                    model="emulated", prompt="plan " * (length // 5), max_tokens=4, temperature=0
                )
                routes.append(raw.headers["x-prfaas-route"].partition(";")[0])
    finally:
        assert system.stop() == 0
    assert routes == ["local", "remote"]
