"""Host tiers in the simulation: what gave way in the accelerator comes back from the host, prefill waits as long as
that takes, and nothing else changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import ConfigError
from prfaas.core.routing.catalog import policy_of
from prfaas.sim.answer import simulate_answer
from prfaas.sim.arrivals import SECOND_NS, Arrival, replayed
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.fromplan import Planned
from prfaas.sim.prefixes import CacheSetup, HostSetup
from prfaas.sim.run import Run, perform
from prfaas.sim.scenario import HostTier, Scenario, read_scenario
from prfaas.sim.setup import Setup
from prfaas.sim.tally import Tally
from prfaas.sim.tiers import TieredPrefixes
from prfaas.sim.words import simulate_words
from prfaas.sim.world import World

from .conftest import flat

SPEC = PoolSpec(64, 2)
BLOCK_BYTES = 1 << 20
HOME = (("home", 1, 400_000),)
BOTH = (*HOME, ("far", 1, 100_000))


def chain(first: int, blocks: int) -> tuple[int, ...]:
    return tuple(range(first * 10_000, first * 10_000 + blocks))


def tiered(
    clusters: Sequence[tuple[str, int, int]], blocks: int, host: int, *, bps: int = 10**9, spec: PoolSpec = SPEC
) -> Setup:
    tier = HostSetup(host, BLOCK_BYTES, bps) if host else None
    return replace(flat(clusters, kv=0), cache=CacheSetup(spec, blocks, host=tier))


def performed(setup: Setup, rows: Sequence[Arrival], policy: str = "local") -> World:
    kind = World if setup.chunks is None else ChunkedWorld
    tally = Tally(SECOND_NS, None, None)
    world = kind(setup, policy_of(policy, 1000), replayed(rows), tally, duration_ns=6000 * SECOND_NS)
    world.run()
    world.validate()
    for cache in world.caches:
        cache.pool.validate()
        if isinstance(cache, TieredPrefixes):
            assert cache.pool.near.working_blocks == cache.pool.moving == 0
    assert world.tally.ended == world.tally.arrived == len(rows)
    return world


ONE, OTHER = chain(1, 100), chain(2, 100)
ROWS = [Arrival(at * 100 * SECOND_NS, 100 * 64 + 1, 2, blocks) for at, blocks in enumerate((ONE, OTHER, ONE))]


@pytest.mark.parametrize("chunks", [None, ChunkSetup(1024, 2)])
@pytest.mark.parametrize("spec", [SPEC, PoolSpec(64)])
def test_what_gave_way_comes_back_and_prefill_waits_for_it(spec: PoolSpec, chunks: ChunkSetup | None) -> None:
    room = 120 if spec.stateful else 101
    assert performed(replace(tiered(HOME, room, 0, spec=spec), chunks=chunks), ROWS).tally.cached_tokens == 0
    world = performed(replace(tiered(HOME, room, 400, spec=spec), chunks=chunks), ROWS)
    (cache,) = world.caches
    assert isinstance(cache, TieredPrefixes)
    assert world.tally.cached_tokens == cache.pool.host_tokens == 100 * 64
    assert cache.pool.fetched_blocks == 100 + spec.snapshot_blocks
    takes_ns = -(-(100 + spec.snapshot_blocks) * BLOCK_BYTES * 8 * SECOND_NS // 10**9)
    assert cache.waited_ns == takes_ns
    # Two prompts whole, and of the third one token beside what its prefix takes to come.
    assert sum(node.busy_ns for node in world.nodes[0]) == 2 * (100 * 64 + 1) * 400_000 + 400_000 + takes_ns


@pytest.mark.parametrize("chunks", [None, ChunkSetup(1024, 2)])
def test_what_would_come_later_than_it_is_computed_does_not_come(chunks: ChunkSetup | None) -> None:
    world = performed(replace(tiered(HOME, 120, 400, bps=10**6), chunks=chunks), ROWS)
    (cache,) = world.caches
    assert isinstance(cache, TieredPrefixes)
    assert (cache.waited_ns, cache.pool.fetched_blocks, world.tally.cached_tokens) == (0, 0, 0)
    assert cache.pool.saved_blocks > 0
    assert world.tally.ttft.most == (100 * 64 + 1) * 400_000 + 10**6


def test_where_a_request_is_placed_what_comes_from_the_host_has_its_price() -> None:
    """The far cluster is four times as fast; home has what the third asks for in its host."""
    placed = {}
    for bps in (10**8, 10**12):
        setup = tiered(BOTH, 120, 400, bps=bps)
        setup = replace(setup, clusters=(setup.clusters[0], replace(setup.clusters[1], prefill=1)))
        world = World(
            setup, policy_of("local", 0), replayed(ROWS[:2]), Tally(SECOND_NS, None, None), duration_ns=10**12
        )
        world.run()
        world.policy = policy_of("fastest", 0)
        world._arrived(world.now_ns, ROWS[2])
        placed[bps] = world.nodes[0][0].running is not None
    assert placed == {10**8: False, 10**12: True}


@pytest.mark.parametrize("policy", ["threshold", "pull", "ours", "fastest"])
@pytest.mark.parametrize("chunks", [None, ChunkSetup(1024, 3)])
@pytest.mark.parametrize("spec", [SPEC, PoolSpec(64)])
def test_every_request_ends_and_books_balance(policy: str, chunks: ChunkSetup | None, spec: PoolSpec) -> None:
    chance = Random(7)
    rows = []
    for number in range(300):
        blocks = chain(chance.randrange(12), chance.randrange(1, 60)) + chain(100 + chance.randrange(40), 20)
        rows.append(Arrival(number * SECOND_NS // 4, len(blocks) * 64 + chance.randrange(64), 4, blocks))
    setup = replace(tiered((("home", 2, 40_000), ("far", 2, 10_000)), 400, 1200, bps=10**11, spec=spec), chunks=chunks)
    world = performed(setup, rows, policy)
    moved = [cache.pool for cache in world.caches if isinstance(cache, TieredPrefixes)]
    assert sum(pool.fetched_blocks for pool in moved) > 0
    assert sum(pool.host_tokens for pool in moved) > 0


def test_the_scenario_says_it_and_the_answer_tells(paper: Planned) -> None:
    scenario = Scenario(cache_bytes=3 << 30, host=HostTier(size=3 << 40, bps=400 * 10**9))
    outcome = perform(Run(paper, scenario, "ours", 0, 4.0, 30 * SECOND_NS))
    cache = outcome.world.setup.cache
    assert cache is not None
    assert cache.host is not None
    assert cache.host.blocks >> 10 == cache.blocks
    said = simulate_answer(outcome)
    assert said.host is not None
    assert said.host.saved_bytes % cache.host.block_bytes == 0
    assert "from host memory" in simulate_words(outcome)
    plain = simulate_answer(perform(Run(paper, Scenario(), "ours", 0, 4.0, 30 * SECOND_NS)))
    assert plain.host is None


def test_a_host_tier_of_no_cache_is_refused(tmp_path: Path, paper: Planned) -> None:
    file = tmp_path / "scenario.yaml"
    file.write_text("loss: 0.1\nhost: {size: 1TB, bandwidth: 512Gbps}\n")
    with pytest.raises(ConfigError, match=r"scenario.yaml:2: host: got a host tier of no cache; expected `cache` too"):
        read_scenario(file, paper.setup)
    file.write_text("cache: 1TB\nhost: {size: 1TB}\n")
    with pytest.raises(ConfigError, match=r"scenario.yaml:2: .*bandwidth"):
        read_scenario(file, paper.setup)
    file.write_text("cache: 1TB\nhost: {size: 0GB, bandwidth: 512Gbps}\n")
    with pytest.raises(ConfigError, match=r"scenario.yaml:2: host.size: .*more than zero"):
        read_scenario(file, paper.setup)
    file.write_text("cache: 1TB\nhost: {size: 4TB, bandwidth: 512Gbps}\n")
    assert read_scenario(file, paper.setup).host == HostTier(size=4 * 10**12, bps=512 * 10**9)  # type: ignore[arg-type]
