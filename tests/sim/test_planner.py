"""Against the planner: with even arrivals and evenly mixed lengths each design holds its Lambda_max, and no more."""

from __future__ import annotations

import pytest

from prfaas.core.routing.catalog import policy_of
from prfaas.plan.designs import Design
from prfaas.sim.arrivals import even, spread_draw
from prfaas.sim.fromplan import Planned, setup_of

from .conftest import run

DURATION_S = 6000
POLICIES = {"prfaas": "threshold", "homogeneous": "local", "naive": "remote", "balanced": "balanced"}


def performed(paper: Planned, design: Design, rate: float) -> tuple[float, float]:
    """Requests, and seconds until the last of them has ended."""
    setup = setup_of(paper.inputs, design)
    policy = policy_of(POLICIES[design.name], design.threshold or 0)
    world = run(setup, policy, even(rate, spread_draw(paper.inputs.workload.lengths, 1024)), DURATION_S)
    assert world.tally.ended == world.tally.arrived
    return world.tally.ended, world.now_ns / 1e9


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_saturation_is_lambda_max_within_one_percent(paper: Planned, name: str) -> None:
    design: Design = getattr(paper.plan.exact, name)
    idle_s = performed(paper, design, design.rate * 0.5)[1] - DURATION_S  # how long the last one takes without a queue
    many, until_s = performed(paper, design, design.rate * 1.1)
    assert many / (until_s - idle_s) == pytest.approx(design.rate, rel=0.01)
    below_s = performed(paper, design, design.rate * 0.99)[1] - DURATION_S
    assert below_s < idle_s + 0.005 * DURATION_S  # no queue that grows
