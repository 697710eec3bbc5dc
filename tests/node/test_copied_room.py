"""Which prefixes can be copied at all, and that a copy takes nothing from those who work."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.node.test_copies import LENGTH, PROMPT, Three, cached

from prfaas.core.cache.spec import PoolSpec
from prfaas.engine.node.identity import NodeLimits
from prfaas.engine.node.prefixes import Prefixes, Wanted
from prfaas.model.blockhash import BLOCK_TOKENS
from prfaas.runtime.driver import loop_now_ns
from prfaas.testing.noderig import Rig, until


@pytest.mark.parametrize("state", [0, 2])
@pytest.mark.parametrize("block_tokens", [16, 48, 64, 128, 512])
def test_a_node_that_copies_can_keep_every_length_that_the_index_names(block_tokens: int, state: int) -> None:
    """That is every canonical block's end; of a node with state those at which it has snapshots."""
    spec, tokens = PoolSpec(block_tokens, state), list(range(2048))
    prefixes = Prefixes(spec, block_tokens, 200)
    step = spec.snapshot_tokens if state else BLOCK_TOKENS
    named = range(step, 2049, step)
    assert prefixes.copyable == all(prefixes.want_fetched(tokens[:length]) is not None for length in named)


def keeping(prefixes: Prefixes, tokens: list[int], *, landed: bool = False) -> None:
    """All of `tokens`, a multiple of 64, are kept; with a snapshot unless they landed."""
    length = len(tokens)
    reuse = prefixes.begin("before", prefixes.want(length + 1, 1, [*tokens, 1], landed=landed))
    assert reuse is not None
    if not landed:
        reuse.take(length, [object(), object()])
    reuse.leave(tokens, length, [object() for _ in range(reuse.stored // 64, length // 64)])
    prefixes.end("before")
    prefixes.validate()


@pytest.mark.parametrize("copy", ["loan", "fetch"])
def test_no_snapshot_on_its_way_gives_its_room_to_a_copy(copy: str) -> None:
    prefixes, kept = Prefixes(PoolSpec(64, 2), 64, 24, copies=True), list(range(256))
    keeping(prefixes, kept)
    works = prefixes.begin("works", prefixes.want(9 * 64, 1, list(range(1000, 1000 + 9 * 64 - 10))))
    assert works is not None
    assert works.allowed > 0
    allowed, other = works.allowed, list(range(5000, 5512))
    wanted = prefixes.want_loan(kept) if copy == "loan" else prefixes.want_fetched(other)
    assert wanted is not None
    assert prefixes.begin("copy", wanted) is None
    assert works.allowed == allowed
    prefixes.validate()
    prefixes.end("works")
    prefixes.validate()


def test_no_hold_gives_its_room_to_a_copy() -> None:
    prefixes, kept = Prefixes(PoolSpec(64, 2), 64, 24), list(range(512))
    keeping(prefixes, kept, landed=True)
    assert prefixes.hold("hold", [*kept, 1, 2]) == 512
    assert prefixes.begin("works", Wanted(10 * 64)) is not None
    wanted = prefixes.want_fetched(list(range(5000, 5256)))
    assert wanted is not None
    assert prefixes.begin("copy", wanted) is None
    assert prefixes.prefix_blocks == 8
    assert prefixes._holds["hold"].pinned
    assert prefixes.begin("more", Wanted(4 * 64)) is not None, "to those who work it does"
    prefixes.validate()
    for owner in ("hold", "works", "more"):
        prefixes.end(owner)
    prefixes.validate()


async def test_no_room_for_the_snapshot_is_no_room(rig: Rig) -> None:
    """Without it nothing would be kept, so nothing crosses."""
    near = await rig.node("near-1", "prefill")
    three = Three(await rig.node("far-1", "prefill"), near, await rig.node("d", "decode"))
    await three.lender.complete(PROMPT, max_tokens=1)
    room = near.server._room
    assert room is not None
    prefixes = room.prefixes
    size = near.engine.limits.block_tokens
    working = (
        prefixes.capacity_blocks - prefixes.blocks_for(LENGTH) - 2
    )  # a state for each of the two, and none for a snapshot
    assert prefixes.begin("works", Wanted(working * size)) is not None
    source, tokens, leg = three.source("l.1"), three.pair.tokens(PROMPT), near.server._prefill
    assert leg is not None
    async with three.lent("l.1"):
        assert await leg._fetching.fetch(source, tokens, loop_now_ns() + 10**10) == "no_room"
        assert near.engine.adopted == 0
    prefixes.end("works")
    room.validate()


async def test_room_for_the_snapshot_that_is_taken_away_in_mid_copy(rig: Rig) -> None:
    """Somebody needs it to begin. What crossed cannot be kept, and is not counted as if it were."""
    near = await rig.node("near-1", "prefill")
    three = Three(await rig.node("far-1", "prefill"), near, await rig.node("d", "decode"))
    await three.lender.complete(PROMPT, max_tokens=1)
    room = three.near.server._room
    assert room is not None
    prefixes = room.prefixes
    alone = await three.home.complete(PROMPT, max_tokens=8)
    size = three.near.engine.limits.block_tokens

    async def crowd(_length: int) -> None:
        free = prefixes.capacity_blocks - prefixes.working_blocks
        assert prefixes.begin("works", Wanted(free * size)) is not None

    three.near.engine.before_adopt = crowd
    async with three.lent("l.1"):
        handing = asyncio.create_task(three.hand_over("t.1", three.source("l.1")))
        await until(lambda: room.waiting == 1, "it waits to compute")
        prefixes.validate()
        assert prefixes.prefix_blocks == 0
        prefixes.end("works")
        room.validate()
        room.leave("works")  # the line moves
        prefilled, decoded = await handing
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert three.near.engine.adopted == 1
    assert await three.outcome("fetched", "no_room") == 1


async def test_no_loan_lasts_longer_than_the_lender_lets_anything_last(rig: Rig) -> None:
    """Nobody dials; who asked would have waited for days."""
    limits = NodeLimits(deadline_ns=3 * 10**8, transfer_lease_ns=3600 * 10**9)
    lender = await rig.node("far-1", "prefill", node_limits=limits)
    three = Three(lender, await rig.node("near-1", "prefill"), await rig.node("d", "decode"))
    await lender.complete(PROMPT, max_tokens=1)
    async with asyncio.timeout(30), three.lent("l.1", deadline_ms=10**12) as response:
        assert json.loads(await response.content.readline())["state"] == "failed"
    await until(lambda: lender.held == (0, 0, 0), "given back")
