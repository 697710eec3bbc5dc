"""Faults of one thing that overlap: the worst counts, and what is nominal comes back when the last has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import even
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.faults import Fault, Kind
from prfaas.sim.holding import Holding
from prfaas.sim.setup import Setup
from prfaas.sim.tally import Tally
from prfaas.sim.world import World

from .conftest import SECOND_NS, flat

CLUSTERS = (("home", 2, 400_000), ("far", 2, 150_000))
BPS = 10**9


def watched(setup: Setup, faults: Sequence[Fault], look: Callable[[World], float], until_s: int) -> list[float]:
    """What `look` sees in the middle of each second."""
    seen: list[float] = []
    kind = World if setup.chunks is None else ChunkedWorld
    arrivals = even(2.0, lambda: (500, 4))
    tally = Tally(SECOND_NS, None, None)
    world = kind(setup, policy_of("ours", 2000), arrivals, tally, duration_ns=until_s * SECOND_NS, faults=list(faults))
    for second in range(until_s):
        world.later(second * SECOND_NS + SECOND_NS // 2, lambda now_ns, _: seen.append(look(world)), None)
    world.run()
    world.validate()
    assert world.alive == 0
    return seen


def fault(kind: Kind, begin: int, end: int, node: int = 0, bps: int = 0, factor: float = 1.0) -> Fault:
    cluster = "home" if kind == "decode_down" else "far"
    target = "home" if kind == "link" else ""
    return Fault(kind, cluster, begin * SECOND_NS, end * SECOND_NS, node, target, bps, factor)


def carried(world: World) -> float:
    now_bps = world.lines[1, 0].uplink.now_bps
    assert now_bps == world.lines[1, 0].capacity * 8e9
    return now_bps


def far_up(world: World) -> float:
    up = sum(world.places(1, number)[0].up for number in range(world.count(1)))
    assert world.backlogs[1].nodes == up
    return up


def slow(world: World) -> float:
    return world.places(1, 0)[0].slow


def decoding(world: World) -> float:
    pool = world.pools[0]
    assert pool is not None
    return sum(node.up for node in pool.nodes)


@pytest.mark.parametrize("chunks", [None, ChunkSetup(200, 2)])
@pytest.mark.parametrize(
    ("faults", "look", "expected"),
    [
        ([fault("link", 1, 6), fault("link", 2, 3)], carried, [BPS, 0, 0, 0, 0, 0, BPS]),
        (
            [fault("link", 1, 4, bps=300), fault("link", 2, 6, bps=200), fault("link", 3, 5, bps=250)],
            carried,
            [BPS, 300, 200, 200, 200, 200, BPS],
        ),
        ([fault("node_down", 1, 6), fault("node_down", 2, 3)], far_up, [2, 1, 1, 1, 1, 1, 2]),
        ([fault("node_down", 1, 3), fault("service_down", 2, 5)], far_up, [2, 1, 0, 0, 0, 2, 2]),
        ([fault("service_down", 1, 3), fault("node_down", 2, 5)], far_up, [2, 0, 0, 1, 1, 2, 2]),
        ([fault("service_down", 1, 5), fault("service_down", 2, 3)], far_up, [2, 0, 0, 0, 0, 2, 2]),
        (
            [
                fault("slow_node", 1, 5, factor=2),
                fault("slow_node", 2, 3, factor=8),
                fault("slow_node", 4, 6, factor=3),
            ],
            slow,
            [1, 2, 8, 2, 3, 3, 1],
        ),
        ([fault("decode_down", 1, 6), fault("decode_down", 2, 3)], decoding, [4, 3, 3, 3, 3, 3, 4]),
    ],
)
def test_of_overlapping_faults_the_worst_counts_until_the_last_ends(
    faults: list[Fault], look: Callable[[World], float], expected: list[float], chunks: ChunkSetup | None
) -> None:
    setup = replace(flat(CLUSTERS, bps=BPS), chunks=chunks)
    assert watched(setup, faults, look, len(expected)) == expected
    assert watched(setup, faults[::-1], look, len(expected)) == expected


def test_loss_counts_during_a_fault_too_and_no_fault_makes_a_line_faster() -> None:
    setup = flat(CLUSTERS, bps=BPS)
    setup = replace(setup, links=tuple(replace(link, loss=0.1) for link in setup.links))
    faults = [fault("link", 1, 2, bps=10**8), fault("link", 3, 4, bps=10 * BPS)]
    assert watched(setup, faults, carried, 5) == [9 * 10**8, 9 * 10**7, 9 * 10**8, 9 * 10**8, 9 * 10**8]


def role_changes(faults: Sequence[Fault]) -> World:
    setup = flat((("home", 2, 400_000),), decode=2)
    policy, arrivals = policy_of("local", 0), even(1.0, lambda: (500, 4))
    tally = Tally(SECOND_NS, None, None)
    world = World(setup, policy, arrivals, tally, duration_ns=30 * SECOND_NS, faults=list(faults))
    world.run()
    world.validate()
    return world


def change(kind: Kind, at: int, node: int) -> Fault:
    return Fault(kind, "home", at * SECOND_NS, (at + 2) * SECOND_NS, node)


@pytest.mark.parametrize("kind", ["to_prefill", "to_decode"])
def test_a_role_change_that_would_empty_a_role_is_refused_and_told(kind: Kind) -> None:
    world = role_changes([change(kind, 3, 0), change(kind, 4, 1), change(kind, 5, 0)])
    assert (world.stuck, world.tally.ended) == (0, world.tally.arrived)
    role = kind.removeprefix("to_")
    other = "prefill" if role == "decode" else "decode"
    assert world.notes == [
        f"{kind} home 1 at 4 s was refused: no {other} node would stay",
        f"{kind} home 0 at 5 s was refused: the node is down, or leaves already",
    ]


def test_a_node_that_is_down_for_a_while_may_be_the_one_that_stays() -> None:
    down = Fault("decode_down", "home", 2 * SECOND_NS, 10 * SECOND_NS, 1)
    world = role_changes([down, change("to_prefill", 3, 0)])
    assert (world.stuck, world.notes) == (0, [])


def test_requests_that_can_never_end_are_counted() -> None:
    tally = Tally(SECOND_NS, None, None)
    setup = flat(CLUSTERS, bps=0)
    world = World(setup, policy_of("remote", 0), even(1.0, lambda: (500, 4)), tally, duration_ns=9 * SECOND_NS)
    world.run()
    assert (world.stuck, tally.arrived, tally.ended) == (9, 9, 0)


def test_a_fault_after_the_last_request_is_told() -> None:
    world = role_changes([Fault("node_down", "home", 40 * SECOND_NS, 50 * SECOND_NS)])
    assert world.notes == ["node_down home 0 at 40 s begins when no requests come any more, from 30 s on"]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3))), st.randoms(use_true_random=False))
def test_what_holds_is_what_began_and_has_not_ended(begun: list[tuple[int, int]], chance: object) -> None:
    holding, live = Holding(), []
    for one in begun:
        holding.begins(*one)
        live.append(one)
        if chance.random() < 0.5:  # type: ignore[attr-defined]
            ended = live.pop(chance.randrange(len(live)))  # type: ignore[attr-defined]
            holding.ends(*ended)
        for thing in range(3):
            assert Counter(holding.of(thing)) == Counter(value for key, value in live if key == thing)
    with pytest.raises((KeyError, ValueError)):
        holding.ends(3)
