"""Caches in the simulation: snapshots where `core` places them, what was granted is what counts, KV that crosses a link
is held at both ends, and what finds no room is counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival, replayed
from prfaas.sim.faults import Fault
from prfaas.sim.prefixes import CacheSetup
from prfaas.sim.setup import Setup
from prfaas.sim.tally import Tally
from prfaas.sim.world import World

from .conftest import flat

SPEC = PoolSpec(64, 2)
HOME = (("home", 1, 400_000),)
BOTH = (*HOME, ("far", 1, 100_000))


def chain(first: int, blocks: int) -> tuple[int, ...]:
    return tuple(range(first * 10_000, first * 10_000 + blocks))


def with_caches(clusters: Sequence[tuple[str, int, int]], blocks: int, spec: PoolSpec = SPEC, **more: int) -> Setup:
    setup = flat(clusters, kv=0, bps=more.get("bps", 10**11))
    return replace(setup, cache=CacheSetup(spec, blocks, more.get("lease", 600 * SECOND_NS)))


def performed(
    setup: Setup,
    policy: str,
    rows: Sequence[Arrival],
    *,
    faults: Sequence[Fault] = (),
    looks: dict[int, Callable[[World], None]] | None = None,
) -> World:
    """To the end; `looks`: what is looked at when, in milliseconds."""
    tally = Tally(SECOND_NS, None, None)
    world = World(setup, policy_of(policy, 1000), replayed(rows), tally, duration_ns=600 * SECOND_NS, faults=faults)
    for at_ms, look in (looks or {}).items():
        world.later(at_ms * 10**6, lambda now, look: look(world), look)
    world.run()
    world.validate()
    for cache in world.caches:
        cache.pool.validate()
        assert cache.pool.working_blocks == 0
    assert world.tally.ended == world.tally.arrived == len(rows)
    return world


def test_snapshots_are_where_core_places_them() -> None:
    shared, first, second = chain(1, 300), chain(2, 100), chain(3, 90)
    rows = [
        Arrival(0, 400 * 64 + 5, 2, shared + first),
        Arrival(60 * SECOND_NS, 390 * 64 + 5, 2, shared + second),
    ]
    pool = performed(with_caches(HOME, 4000), "local", rows).caches[0].pool
    stops, spare = Placement().lengths(SPEC, Grant(0, 0, 0), rows[0].tokens, rows[0].tokens)
    assert len(spare) > 1
    assert pool.snapshots(rows[0].blocks, rows[0].tokens) == sorted({*stops, *spare, 300 * 64})  # 300: the paths part
    cached = max(stop for stop in spare if stop <= 300 * 64)
    stops, spare = Placement().lengths(SPEC, Grant(cached, 300 * 64, 0), rows[1].tokens, rows[1].tokens)
    assert stops == [390 * 64, 300 * 64]
    assert set(pool.snapshots(rows[1].blocks, rows[1].tokens)) >= {*stops, *spare}


def test_what_counts_is_what_is_there_when_prefill_begins() -> None:
    one = chain(1, 100)
    # The second is placed before the first has computed anything, and begins when it has.
    rows = [Arrival(0, 100 * 64 + 1, 2, one), Arrival(1, 100 * 64 + 1, 2, one)]
    world = performed(with_caches(HOME, 4000), "local", rows)
    assert world.tally.cached_tokens == 100 * 64
    assert world.tally.queued.most == (100 * 64 + 1) * 400_000 - 1
    # The reverse: it was there when the third was placed, and gave way to the second before that began.
    rows = [
        Arrival(0, 100 * 64 + 1, 2, one),
        Arrival(3 * SECOND_NS, 100 * 64 + 1, 2, chain(2, 100)),
        Arrival(3 * SECOND_NS + 1, 100 * 64 + 1, 2, one),
    ]
    world = performed(with_caches(HOME, 150), "local", rows)
    assert world.tally.cached_tokens == 0


def test_a_prompt_that_is_all_there_computes_its_last_token() -> None:
    rows = [Arrival(0, 6400, 2, chain(1, 100)), Arrival(60 * SECOND_NS, 6400, 2, chain(1, 100))]
    world = performed(with_caches(HOME, 4000, PoolSpec(64)), "local", rows)
    assert world.tally.cached_tokens == 99 * 64


def test_kv_that_crosses_a_link_is_held_at_both_ends() -> None:
    rows = [Arrival(0, 6400, 2, chain(1, 100))]
    found: dict[str, list[int]] = {}

    def look(name: str) -> Callable[[World], None]:
        return lambda world: found.update({name: [cache.pool.working_blocks for cache in world.caches]})

    # 6.4 MB take 0.64 s to make and 5.12 s to cross.
    setup = with_caches(BOTH, 4000, bps=10**7)
    world = performed(setup, "remote", rows, looks={100: look("made"), 3000: look("crosses"), 6000: look("landed")})
    assert found["made"] == [102, 102]
    assert found["crosses"] == [102, 2]  # the prefix is one already, the state is not
    assert found["landed"] == [0, 0]
    assert world.caches[0].pool.snapshots(rows[0].blocks, 6400) == [6400]


def test_what_a_receiver_has_already_cannot_go_while_the_rest_comes() -> None:
    one = chain(1, 100)
    rows = [
        Arrival(0, 6401, 2, one),
        Arrival(20 * SECOND_NS, 200 * 64 + 1, 2, one + chain(2, 100)),
        Arrival(21 * SECOND_NS, 150 * 64 + 1, 2, chain(3, 150)),
    ]
    seen: list[int] = []
    # Room at home for the first two, not for all three.
    setup = with_caches(BOTH, 260, bps=10**7)
    looks = {26_000: lambda world: seen.append(world.caches[0].usable(one, 6401))}
    world = performed(setup, "remote", rows, looks=looks)
    assert seen == [6400]
    assert world.caches[0].pool.refused == 1


def test_what_finds_no_room_is_counted_and_computed_whole() -> None:
    rows = [Arrival(at * 60 * SECOND_NS, 6400, 2, chain(1, 100)) for at in range(3)]
    world = performed(with_caches(HOME, 60), "local", rows)
    assert sum(cache.pool.refused for cache in world.caches) == 3
    assert world.tally.cached_tokens == 0
    assert world.caches[0].pool.used_blocks == 0


@pytest.mark.parametrize("policy", ["remote", "pull"])
def test_a_lease_that_ends_costs_the_prefill(policy: str) -> None:
    rows = [Arrival(0, 6400, 2, chain(1, 100))]
    down = Fault("link", "far", 100 * 10**6, 60 * SECOND_NS, target="home")
    world = performed(with_caches(BOTH, 4000, lease=5 * SECOND_NS), policy, rows, faults=[down])
    rescued = world.tally.rescued
    assert rescued == (policy == "pull")
    if not rescued:
        assert world.tally.expired > 1  # placed again, made again, until the link is back
        assert world.tally.retried == world.tally.expired
        assert world.tally.ttft.most > 60 * SECOND_NS


def test_a_lease_that_ends_while_home_makes_it_again() -> None:
    # 40 s at home, 10 s far away. The link is down until the end; home looks when the second is done, and finds KV that
    # is stuck since the 10th second and held until the 110th.
    rows = [Arrival(0, 100_000, 2, chain(1, 1562)), Arrival(90 * SECOND_NS, 500, 2)]
    down = Fault("link", "far", 100 * 10**6, 300 * SECOND_NS, target="home")
    world = performed(with_caches(BOTH, 4000, lease=100 * SECOND_NS), "pull", rows, faults=[down])
    assert world.tally.expired == 1
    assert (world.tally.retried, world.tally.rescued) == (0, 0)
    assert 130 * SECOND_NS < world.tally.ttft.most < 131 * SECOND_NS
