"""Small worlds for tests: the paper's clusters, and others made of plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from prfaas.core.routing.policy import Policy
from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan
from prfaas.sim.arrivals import Arrival, poisson
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.faults import Fault
from prfaas.sim.fromplan import Planned, planned
from prfaas.sim.setup import ClusterSetup, LinkSetup, Setup
from prfaas.sim.tally import Tally
from prfaas.sim.world import Log, World

ROOT = Path(__file__).parents[2]
PAPER = ROOT / "examples" / "paper.yaml"
SECOND_NS = 10**9


@pytest.fixture(scope="session")
def paper() -> Planned:
    said, document = read_plan(PAPER)
    return planned(Plan(read_inputs(said, document)))


def flat(clusters: Sequence[tuple[str, int, int]], *, bps: int = 10**11, decode: int = 4, kv: int = 1 << 20) -> Setup:
    """The first of (name, prefill nodes, ns a token) is the home, with a decode step of 1 ms; links from the others."""
    made = [
        ClusterSetup(
            name,
            nodes,
            lambda uncached, context, speed=speed: max(1, uncached * speed),
            decode if at == 0 else 0,
            1000,
            None,
            lambda batch, context: 10**6,
            10**6,
            1.0 if at == 0 else 0.0,
        )
        for at, (name, nodes, speed) in enumerate(clusters)
    ]
    links = tuple(LinkSetup(at, 0, bps, 10**6) for at in range(1, len(made)))
    return Setup(tuple(made), links, lambda tokens: kv + 1000 * tokens)


def run(
    setup: Setup,
    policy: Policy,
    arrivals: Iterator[Arrival],
    duration_s: float,
    *,
    faults: Sequence[Fault] = (),
    log: Log | None = None,
) -> World:
    """A run to its end, checked."""
    kind = World if setup.chunks is None else ChunkedWorld
    world = kind(
        setup,
        policy,
        arrivals,
        Tally(SECOND_NS, None, None),
        duration_ns=int(duration_s * SECOND_NS),
        faults=faults,
        log=log,
    )
    world.run()
    world.validate()
    return world


def drawn(seed: int, rate: float, tokens: Callable[[Random], int], output: int = 8) -> Iterator[Arrival]:
    """Poisson arrivals with prompts of `tokens`."""
    lengths = Random(f"lengths {seed}")
    return poisson(rate, lambda: (tokens(lengths), output), Random(f"times {seed}"))
