"""Role balance in the simulation: nodes follow a mix that shifts, nobody is lost on the way, the threshold follows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival, poisson, replayed
from prfaas.sim.balance import Balance, BalanceSetup
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.decode import DecodeNode
from prfaas.sim.faults import Fault
from prfaas.sim.fromplan import Planned
from prfaas.sim.setup import Setup
from prfaas.sim.tally import Tally
from prfaas.sim.world import World

from .conftest import flat

MS = 10**6
HOUR_NS = 3600 * SECOND_NS
USUAL = BalanceSetup("ours", 300 * SECOND_NS, 900 * SECOND_NS, 120 * SECOND_NS, 1024.0, 19_696)


def shifting(rate: float, seed: int = 1) -> Iterator[Arrival]:
    """First more short prompts with long answers, then more of the reverse; the middle hour leads from one to the
    other."""
    chance = Random(seed)
    now = 0

    def draw() -> tuple[int, int]:
        far = min(1.0, max(0.0, (now - 1.5 * HOUR_NS) / HOUR_NS))
        long = chance.random() < 0.15 + 0.7 * far
        mu, sigma, output = (10.2, 0.9, 500) if long else (9.3, 1.0, 1700)
        return min(131_072, 128 + round(chance.lognormvariate(mu, sigma))), 1 + round(chance.expovariate(1 / output))

    for arrival in poisson(rate, draw, chance):
        now = arrival.at_ns
        yield arrival


def performed(paper: Planned, rate: float, balance: BalanceSetup | None, hours: float = 4) -> World:
    duration_ns = int(hours * HOUR_NS)
    world = World(
        paper.setup,
        policy_of("ours", paper.threshold),
        shifting(rate),
        Tally(duration_ns // 240, None, None),
        duration_ns=duration_ns,
        balance=balance,
    )
    world.run()
    world.validate()
    assert world.tally.ended == world.tally.arrived
    return world


def reversals(balance: Balance) -> int:
    return sum(a.to != b.to and b.at_ns - a.at_ns <= 2 * HOUR_NS for a, b in pairwise(balance.steps))


@pytest.mark.slow
def test_nodes_follow_a_mix_that_shifts(paper: Planned) -> None:
    fixed = performed(paper, 2.5, None).tally
    world = performed(paper, 2.5, USUAL)
    balance = world.balance
    assert balance is not None
    assert world.tally.ttft.mean < 0.6 * fixed.ttft.mean
    assert world.tally.ttft.quantile(0.9) < 0.5 * fixed.ttft.quantile(0.9)
    assert reversals(balance) == 0
    to = [one.to for one in balance.steps]
    assert to == sorted(to)  # first to decode, then to prefill
    assert set(to) == {"decode", "prefill"}
    for step in balance.steps:
        assert step.judged.why == "better"
        assert step.done_ns == step.drained_ns + USUAL.cost_ns
        assert step.drained_ns >= step.at_ns
    assert world.policy.threshold == balance.tuner.threshold == balance.tuned[-1][1].tokens  # type: ignore[attr-defined]
    assert balance.staffs[0][1:] == (3, 5)
    assert balance.staffs[-1][1:] == (world.backlogs[0].nodes, 8 - world.backlogs[0].nodes)


def test_equal_seeds_give_equal_conversions(paper: Planned) -> None:
    def found() -> object:
        world = performed(paper, 2.0, USUAL, 0.7)
        assert world.balance is not None
        assert world.balance.steps
        return world.balance.steps, world.balance.tuned, world.balance.looks, world.tally.ttft.buckets

    assert found() == found()


def small(chunks: ChunkSetup | None) -> Setup:
    """Three prefill and four decode nodes with 8 slots each; a step takes 10 ms."""
    setup = flat((("home", 3, 100_000), ("far", 2, 50_000)))
    home = replace(setup.clusters[0], batch=8, step_ns=lambda batch, context: 10 * MS, flat_step_ns=10 * MS)
    return replace(setup, clusters=(home, *setup.clusters[1:]), chunks=chunks)


faults = st.builds(
    lambda kind, cluster, at, lasts, node: Fault(
        kind,
        "far" if kind == "link" else "home" if kind in ("decode_down", "to_prefill", "to_decode") else cluster,
        at,
        at + lasts,
        node,
        "home" if kind == "link" else "",
        10**7,
        3.0,
    ),
    st.sampled_from(("node_down", "service_down", "link", "slow_node", "decode_down", "to_prefill", "to_decode")),
    st.sampled_from(("home", "far")),
    st.integers(0, 40 * SECOND_NS),
    st.integers(1, 8 * SECOND_NS),
    st.integers(0, 1),
)


@pytest.mark.slow
@settings(max_examples=15)
@given(
    st.integers(0, 10**6),
    st.lists(faults, max_size=3),
    st.sampled_from(("ours", "ratio")),
    st.sampled_from((None, ChunkSetup(200, 2))),
)
def test_nobody_is_lost_while_nodes_change(seed: int, wrong: list[Fault], rule: str, chunks: ChunkSetup | None) -> None:
    chance = Random(seed)

    def draw() -> tuple[int, int]:
        return chance.choice((100, 300, 1500)), chance.choice((2, 20, 60) if arrived < 900 else (2, 4))

    arrived = 0

    def counted() -> Iterator[Arrival]:
        nonlocal arrived
        for arrival in poisson(30.0, draw, chance):
            arrived += 1
            yield arrival

    kind = World if chunks is None else ChunkedWorld
    world = kind(
        small(chunks),
        policy_of("ours", 500),
        counted(),
        Tally(SECOND_NS, None, None),
        duration_ns=50 * SECOND_NS,
        faults=wrong,
        balance=BalanceSetup(rule, 2 * SECOND_NS, 8 * SECOND_NS, SECOND_NS, 20.0, 500),
    )
    world.run()
    world.validate()
    balance = world.balance
    assert balance is not None
    balance.balancer.validate()
    assert world.alive == 0
    assert world.tally.ended == world.tally.arrived
    assert len(balance.looks) > 0
    under_way = balance.balancer.under_way
    assert under_way is None
    pool = world.pools[0]
    assert pool is not None
    assert world.backlogs[0].nodes + sum(node.up for node in pool.nodes) >= 7


def test_a_node_that_does_not_drain_goes_on_as_it_was() -> None:
    setup = small(None)
    rows = [Arrival(0, 100, 20_000), Arrival(1, 100, 100), Arrival(40 * SECOND_NS, 100, 5)]
    world = World(
        setup, policy_of("local", 0), replayed(rows), Tally(SECOND_NS, None, None), duration_ns=400 * SECOND_NS
    )
    pool = world.roles.pool(0)
    ends: list[int] = []

    def drain(now_ns: int, node: DecodeNode) -> None:
        world.roles.drain_decode(now_ns, node, ends.append)

    def busiest() -> DecodeNode:
        return max(pool.nodes, key=lambda node: node.active)

    world.later(SECOND_NS, lambda now_ns, _: drain(now_ns, busiest()), None)
    world.later(30 * SECOND_NS, lambda now_ns, _: world.roles.resume_decode(now_ns, 0, pool.nodes[0]), None)
    world.run()
    assert world.tally.ended == 3
    assert ends == []
    assert all(node.up and node.then is None for node in pool.nodes)


def test_who_works_is_told_when_nodes_die_and_come_back() -> None:
    wrong = [
        Fault("node_down", "home", 5 * SECOND_NS, 10 * SECOND_NS, node=1),
        Fault("decode_down", "home", 6 * SECOND_NS, 8 * SECOND_NS, node=3),
        Fault("to_prefill", "home", 20 * SECOND_NS, 21 * SECOND_NS, node=0),
    ]
    world = World(
        small(None),
        policy_of("local", 0),
        iter(()),
        Tally(SECOND_NS, None, None),
        duration_ns=60 * SECOND_NS,
        faults=wrong,
        balance=BalanceSetup("ours", 30 * SECOND_NS, 60 * SECOND_NS, SECOND_NS, 20.0, 500),
    )
    world.run()
    assert world.balance is not None
    counts = [(at_ns // SECOND_NS, n_p, n_d) for at_ns, n_p, n_d in world.balance.staffs]
    assert counts == [(0, 3, 4), (5, 2, 4), (6, 2, 3), (8, 2, 4), (10, 3, 4), (20, 3, 3), (21, 4, 3)]
    assert world.balance.looks == {"few_requests": 2}
