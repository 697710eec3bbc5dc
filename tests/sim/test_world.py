"""Each request ends once, whatever goes wrong; equal seeds give equal logs; decisions have reasons."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.cache.spec import PoolSpec
from prfaas.core.routing.catalog import NAMES, policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival, even, replayed
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.faults import Fault
from prfaas.sim.prefixes import CacheSetup
from prfaas.sim.setup import Setup
from prfaas.sim.world import World

from .conftest import drawn, flat, run

MS = 10**6
CLUSTERS = (("home", 2, 400_000), ("far", 2, 150_000), ("other", 1, 200_000))


def mixed(chance: Random) -> int:
    return chance.choice((100, 500, 1000, 5000, 20_000))


def ended_once(world: World, most: int = 0) -> None:
    """Nobody is left anywhere, and books balance. `most`: bits a second that a line did at any time."""
    tally = world.tally
    assert world.alive == 0
    assert tally.arrived == tally.ended == tally.ttft.count
    assert not any(len(backlog) or backlog.ends for backlog in world.backlogs)
    assert not any(stuck for backlog in world.backlogs for stuck in backlog.stuck.values())
    for line in world.lines.values():
        assert not line.making
        assert not line.drains
        assert line.uplink.unsent_bytes == 0
        assert line.uplink.queued_bytes == 0
        assert line.peak <= max(line.capacity, most / 8e9) * (1 + 1e-6)
    assert all(pool is None or (len(pool) == 0 and not pool.waiting) for pool in world.pools)


HOME_KINDS = ("decode_down", "to_prefill", "to_decode")

faults = st.builds(
    lambda kind, cluster, at, lasts, node, bps: Fault(
        kind,
        "home" if kind in HOME_KINDS else "far" if kind == "link" else cluster,
        at,
        at + lasts,
        node if cluster != "other" else 0,
        "home" if kind == "link" else "",
        bps,
        3.0,
    ),
    st.sampled_from(("node_down", "service_down", "link", "slow_node", *HOME_KINDS)),
    st.sampled_from(("home", "far", "other")),
    st.integers(0, 15 * SECOND_NS),
    st.integers(1, 8 * SECOND_NS),
    st.integers(0, 1),
    st.sampled_from((0, 10**6, 10**9)),
)


@settings(max_examples=60)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 10**6),
    st.lists(faults, max_size=4),
    st.sampled_from((10**7, 10**11)),
    st.sampled_from((None, ChunkSetup(700, 1), ChunkSetup(2000, 2), ChunkSetup(1000, 5))),
)
def test_each_request_ends_once_whatever_goes_wrong(
    name: str, seed: int, wrong: list[Fault], bps: int, chunks: ChunkSetup | None
) -> None:
    setup = replace(flat(CLUSTERS, bps=bps), chunks=chunks)
    world = run(setup, policy_of(name, 2000), drawn(seed, 2.0, mixed), 15, faults=wrong)
    ended_once(world, max([fault.bps for fault in wrong], default=0))


@settings(max_examples=30)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 10**6),
    st.lists(faults, max_size=3),
    st.sampled_from((SECOND_NS, 600 * SECOND_NS)),
    st.sampled_from((None, ChunkSetup(512, 1), ChunkSetup(1000, 3))),
)
def test_so_they_do_with_caches(
    name: str, seed: int, wrong: list[Fault], lease_ns: int, chunks: ChunkSetup | None
) -> None:
    setup = flat(CLUSTERS, bps=10**9)
    setup = replace(setup, cache=CacheSetup(PoolSpec(64, 2), 400, lease_ns), chunks=chunks)
    chance = Random(seed)
    rows = []
    for at in range(30):
        length = chance.choice((3, 10, 40, 200))
        chain = tuple(chance.choice((0, 1)) * 1000 + place for place in range(length))
        rows.append(Arrival(at * 400 * MS, length * 64 + chance.randrange(1, 64), 5, chain))
    world = run(setup, policy_of(name, 2000), replayed(rows), 15, faults=wrong)
    ended_once(world, 10**11)
    for cache in world.caches:
        cache.pool.validate()
        assert cache.pool.working_blocks == 0


def test_a_request_alone_takes_prefill_link_and_a_decode_step() -> None:
    setup = flat((("home", 1, 400_000), ("far", 1, 100_000)), kv=0)
    alone = [Arrival(0, 10_000, 3)]
    here = run(setup, policy_of("local", 0), iter(alone), 60).tally
    assert here.ttft.total == 10_000 * 400_000 + MS
    assert here.whole.total == here.ttft.total + 2 * MS
    away = run(setup, policy_of("remote", 0), iter(alone), 60).tally
    assert away.ttft.total == 10_000 * 100_000 + MS + MS  # a round trip, a step
    assert away.offloaded == 1


def test_a_role_change_waits_for_work_and_costs_time() -> None:
    setup = flat((("home", 1, 10**6),), decode=2)
    change = Fault("to_prefill", "home", 2 * SECOND_NS, 5 * SECOND_NS, node=0)
    rows = [Arrival(0, 1000, 3001), Arrival(1, 20_000, 2), Arrival(2, 1000, 2)]
    world = run(setup, policy_of("local", 0), replayed(rows), 60, faults=[change])
    ended_once(world)
    # The first decodes on node 0 from 1 s to 4.001 s; 3 s later there is a second prefill node, for the third.
    assert world.tally.queued.most == 4_001_000_000 + 3 * SECOND_NS - 2
    assert [world.backlogs[0].nodes, sum(node.up for node in world.pools[0].nodes)] == [2, 1]  # type: ignore[union-attr]


def test_the_same_seed_gives_the_same_log() -> None:
    def logged() -> list[object]:
        log: list[object] = []
        run(flat(CLUSTERS), policy_of("ours", 2000), drawn(3, 2.0, mixed), 100, log=lambda *said: log.append(said))
        return log

    first = logged()
    assert first == logged()
    assert len(first) > 150


HASHED = """
import hashlib, sys
sys.path.insert(0, {tests!r})
from tests.sim.test_world import digest
print(digest())
"""


def digest() -> str:
    """Of all decisions of a run with every kind of trouble."""
    log = hashlib.sha256()
    wrong = [Fault("link", "far", 20 * SECOND_NS, 50 * SECOND_NS, target="home", bps=10**7)]
    wrong.append(Fault("node_down", "far", 60 * SECOND_NS, 70 * SECOND_NS))
    setup = flat(CLUSTERS)
    world = run(
        setup,
        policy_of("ours", 2000),
        drawn(5, 2.0, mixed),
        100,
        faults=wrong,
        log=lambda *said: log.update(repr(said).encode()),
    )
    log.update(repr(sorted(world.tally.ttft.buckets.items())).encode())
    return log.hexdigest()


@pytest.mark.slow
def test_hash_seeds_change_nothing() -> None:
    code = "from tests.sim.test_world import digest; print(digest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": "src:."},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "77")
    }
    assert found == {digest()}


def test_policies_see_the_same_requests() -> None:
    came: dict[str, list[tuple[int, int]]] = {}
    for name in ("local", "ours"):
        log: list[tuple[int, int]] = []
        arrivals = drawn(4, 1.0, mixed)
        seen = came.setdefault(name, log)
        wrapped = (seen.append((one.at_ns, one.tokens)) or one for one in arrivals)  # type: ignore[func-returns-value]
        run(flat(CLUSTERS), policy_of(name, 2000), wrapped, 30)
    assert came["local"] == came["ours"]


def test_a_prefix_that_was_sent_home_is_a_hit_there() -> None:
    setup = flat((("home", 1, 400_000), ("far", 1, 100_000)), kv=0)
    setup = Setup(setup.clusters, setup.links, setup.kv_bytes, CacheSetup(PoolSpec(64), 4000))
    chain = tuple(range(100))
    rows = [Arrival(0, 6400, 2, chain), Arrival(20 * SECOND_NS, 6500, 2, (*chain, 7))]
    world = run(setup, policy_of("threshold", 1000), replayed(rows), 60)
    assert world.tally.reasons == {"long": 1, "short": 1}
    assert world.tally.cached_tokens == 6400
    assert world.tally.offloaded == 1


def test_ctrl_c_keeps_what_was_computed() -> None:
    def interrupted() -> object:
        source = even(10.0, lambda: (100, 2))
        for _ in range(50):
            yield next(source)
        raise KeyboardInterrupt

    world = World.__new__(World)
    from prfaas.sim.tally import Tally

    world.__init__(  # type: ignore[misc]
        flat(CLUSTERS), policy_of("ours", 2000), interrupted(), Tally(SECOND_NS, None, None), duration_ns=60 * SECOND_NS
    )
    world.run()
    assert world.interrupted
    assert world.tally.arrived >= 49
