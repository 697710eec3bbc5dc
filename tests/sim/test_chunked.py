"""Prefill in chunks: prompts on one node take turns, policies see when all of it will be done, KV leaves chunk by
chunk, and what is computed can be resumed before the prompt is through."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.cache.spec import PoolSpec
from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival, replayed
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.chunks import ChunkSetup, chunks_of
from prfaas.sim.faults import Fault
from prfaas.sim.prefixes import CacheSetup
from prfaas.sim.setup import Setup
from prfaas.sim.tally import Tally
from prfaas.sim.world import World

from .conftest import flat, run

MS = 10**6
HOME = (("home", 1, MS),)
"""A millisecond a token."""


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 3000))
def test_chunks_end_at_multiples_and_cover_all(uncached: int, cached: int, size: int) -> None:
    context = cached + uncached
    chunks = chunks_of(lambda new, at: 7 + new * at, size, uncached, context)
    ends = [end for end, _ in chunks]
    assert ends[-1] == context
    assert all(end % size == 0 for end in ends[:-1])
    assert all(b - a <= size for a, b in zip([cached, *ends], ends, strict=False))
    assert sum(takes_ns for _, takes_ns in chunks) == 7 + uncached * context


def chunked(setup: Setup, tokens: int, prompts: int) -> Setup:
    return replace(setup, chunks=ChunkSetup(tokens, prompts))


def firsts(setup: Setup, rows: list[Arrival], policy: str = "local") -> list[int]:
    """When each had its first token, less one step of decode, in milliseconds, in the order of arrival."""
    found: dict[int, int] = {}

    class Noted(Tally):
        def finished(self, now_ns: int, request: object) -> None:
            found[request.number] = (request.first_ns - MS) // MS  # type: ignore[attr-defined]
            super().finished(now_ns, request)  # type: ignore[arg-type]

    kind = World if setup.chunks is None else ChunkedWorld
    world = kind(
        setup, policy_of(policy, 1500), replayed(rows), Noted(SECOND_NS, None, None), duration_ns=900 * SECOND_NS
    )
    world.run()
    world.validate()
    return [found[number] for number in sorted(found)]


def test_prompts_take_turns() -> None:
    rows = [Arrival(0, 10_000, 2), Arrival(MS, 1000, 2), Arrival(2 * MS, 2000, 2)]
    setup = flat(HOME)
    assert firsts(setup, rows) == [10_000, 11_000, 13_000]
    assert firsts(chunked(setup, 1000, 1), rows) == [10_000, 11_000, 13_000]
    # long, short, other, long, other, long ...
    assert firsts(chunked(setup, 1000, 3), rows) == [13_000, 2000, 5000]
    # The third waits until the second has left, and then for the long one's turn.
    assert firsts(chunked(setup, 1000, 2), rows) == [13_000, 2000, 6000]
    assert firsts(chunked(setup, 4000, 3), rows) == [13_000, 5000, 7000]


def test_a_node_with_work_takes_more_only_where_none_is_idle() -> None:
    rows = [Arrival(0, 10_000, 2), Arrival(MS, 9000, 2), Arrival(2 * MS, 1000, 2)]
    setup = chunked(flat((("home", 2, MS),)), 1000, 4)
    assert firsts(setup, rows) == [10_000, 10_001, 2001]  # the third beside the second, which would be done first


@given(st.integers(0, 10**6), st.integers(1, 4), st.sampled_from((300, 1000, 5000)), st.sampled_from((1.0, 2.0)))
def test_policies_see_when_a_node_will_be_done(seed: int, prompts: int, size: int, slow: float) -> None:
    chance = Random(seed)
    rows = sorted(Arrival(chance.randrange(3000) * MS, chance.randrange(1, 8000), 2) for _ in range(prompts))
    setup = chunked(flat(HOME), size, prompts)
    faults = [Fault("slow_node", "home", 0, 20_000 * MS, factor=slow)] if slow != 1.0 else []
    world = ChunkedWorld(
        setup,
        policy_of("local", 0),
        replayed(rows),
        Tally(SECOND_NS, None, None),
        duration_ns=900 * SECOND_NS,
        faults=faults,
    )
    backlog, seen = world.backlogs[0], []

    def look(now_ns: int, _: object) -> None:
        (end,) = backlog.ends
        seen.append(end)
        world.later(end - 1, lambda now_ns, _: seen.append(len(backlog.ends)), None)
        world.later(end + 1, lambda now_ns, _: seen.append(len(backlog.ends)), None)

    world.later(3000 * MS, lambda now_ns, _: look(now_ns, _) if backlog.ends else None, None)
    world.run()
    if seen and slow == 1.0:
        assert seen[1:] == [1, 0]
    elif seen:
        assert seen[1] == 1  # nobody knows that it is slow, until a chunk is late
    assert world.tally.ended == prompts


@pytest.mark.parametrize("bps", [10**11, 2 * 10**7])
def test_kv_leaves_chunk_by_chunk(bps: int) -> None:
    setup = flat((("home", 1, MS), ("far", 1, 400_000)), bps=bps)
    alone = [Arrival(0, 10_000, 2)]
    whole = firsts(setup, alone, "remote")
    assert firsts(chunked(setup, 1000, 1), alone, "remote") == whole
    both = [*alone, Arrival(1, 10_000, 2)]
    world = run(chunked(setup, 1000, 2), policy_of("remote", 0), replayed(both), 60)
    kv = setup.kv_bytes(10_000)
    assert world.lines[1, 0].total == pytest.approx(2 * kv)
    if bps == 10**11:  # all but a chunk's KV has crossed when the prompt is done
        assert world.tally.exposed.most == MS
    else:
        assert world.tally.exposed.most == pytest.approx(2 * kv * 8 / bps * 1e9 - 8000 * MS, rel=0.3)


@pytest.mark.parametrize("spec", [PoolSpec(64), PoolSpec(64, 2)])
def test_what_is_computed_is_found_by_others_at_chunk_ends(spec: PoolSpec) -> None:
    blocks = tuple(range(100))
    rows = [Arrival(0, 6400, 2, blocks), Arrival(2500 * MS, 3200, 2, blocks[:50])]
    setup = replace(flat((("home", 2, MS),)), cache=CacheSetup(spec, 4000))
    assert firsts(setup, rows) == [6400, 5700]
    # 15 blocks of 64 tokens are a chunk. After 2,500 ms two are done, 1,920 tokens.
    assert firsts(chunked(setup, 960, 1), rows) == [6400, 2500 + 3200 - 1920]


def test_a_prompt_that_lost_its_node_resumes_at_a_chunk_end() -> None:
    blocks = tuple(range(100))
    setup = replace(chunked(flat((("home", 2, MS),)), 960, 2), cache=CacheSetup(PoolSpec(64), 4000))
    down = Fault("node_down", "home", 3000 * MS, 4000 * MS, node=0)
    dead = Fault("node_down", "home", 3000 * MS, 4000 * MS, node=1)
    world = run(setup, policy_of("local", 0), replayed([Arrival(0, 6400, 2, blocks)]), 60, faults=[down, dead])
    assert world.tally.retried >= 1
    assert world.tally.ttft.most == 4000 * MS + (6400 - 3 * 960) * MS + MS


def test_the_same_seed_gives_the_same_log() -> None:
    def logged() -> list[object]:
        log: list[object] = []
        chance = Random(4)
        rows = [
            Arrival(at * 300 * MS, chance.choice((300, 2000, 9000)), 4, tuple(range(chance.randrange(40))))
            for at in range(100)
        ]
        setup = replace(chunked(flat((("home", 2, MS), ("far", 2, MS // 3))), 700, 3), cache=None)
        tell: Callable[..., None] = lambda *said: log.append(said)  # noqa: E731
        run(setup, policy_of("ours", 1500), replayed(rows), 60, log=tell)
        return log

    assert logged() == logged()
