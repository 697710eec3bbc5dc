"""Only what a decode node lacks crosses; what it holds stays until the engine has it, and is given back whoever leaves.

The derived engine checks every byte that lands, and what it builds on."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from prfaas.cluster.enginemap import EngineMap
from prfaas.core.cache.layout import KVLayout
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Place
from prfaas.core.transfer.extent import extent_bytes, needed
from prfaas.engine.node.identity import NodeLimits
from prfaas.engine.node.prefixes import Prefixes, Wanted
from prfaas.engine.node.room import Room
from prfaas.engine.node.telling import Telling
from prfaas.model.blockhash import CacheKey, block_hashes
from prfaas.testing.engine import PARTS
from prfaas.testing.noderig import LIMITS, Answer, Node, Pair, Rig, until
from prfaas.wire.kvevents import KVEvent

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of "
BLOCK, WINDOW = LIMITS.block_tokens, PARTS[2].window


def crossing(layout: KVLayout, length: int, held: int) -> int:
    """Bytes that cross to a receiver that holds `held` tokens."""
    parts = {(part.layer, part.name): part for part in layout.parts}
    return sum(extent_bytes(parts[one.layer, one.part], one) for one in needed(layout, length, held))


def most_held(length: int, common: int) -> int:
    """Whole blocks of the `common` tokens, as long as the window's rows cross."""
    return max(0, min(common, length - WINDOW)) // BLOCK * BLOCK


async def held(node: Node) -> int:
    return int(await node.metric('prfaas_prompt_tokens_total{source="held"}'))


def moved(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.json["kv_transfer_params"]["bytes"])


def room_of(node: Node) -> Room:
    room = node.server._room
    assert room is not None
    return room


@pytest.mark.parametrize("choices", [1, 3])
async def test_each_turn_crosses_once(pair: Pair, rig: Rig, choices: int) -> None:
    """What came before is held, the answer too; the prefill node has seen the prompts alone."""
    plain = await rig.node("home-2", "decode", node_limits=NodeLimits(prefix_cache=False))
    said, before, count, holding = TEXT, 0, 30, 0
    for turn in range(4):
        alone = await plain.complete(said, max_tokens=count, n=choices)
        prefilled, decoded = await pair.hand_over(f"t.{turn}", said, max_tokens=count, n=choices)
        assert [one.text for one in decoded.choices] == [one.text for one in alone.choices]
        length = len(said)  # BOS comes before it, the last token is decoded
        now = most_held(length, before)
        assert moved(prefilled) == crossing(pair.far.engine.layout, length, now)
        holding += now
        assert await held(pair.home) == holding
        details = [one.usage["prompt_tokens_details"]["cached_tokens"] for one in (prefilled, decoded)]
        assert details[0] == details[1], "what was held was computed all the same"
        before = length + count
        said += decoded.choices[0].text + TEXT[: 20 + 10 * turn]
    assert holding > 3 * len(TEXT) // 2
    assert await pair.home.metric("vllm:prefix_cache_queries_total") == 0


def test_rows_are_told_as_no_place_to_resume() -> None:
    """To those who listened from the start, and to those who come later."""
    place, root = Place(ClusterName("c"), NodeName("n")), CacheKey("model").root()
    index, follower = PrefixIndex(), EngineMap(place, lambda salt, adapter: root, canonical=True)
    index.open(place, Epoch(1))

    def told(*events: KVEvent) -> None:
        for change in follower.changes(events):
            apply(index, change)

    telling = Telling(root, told)
    prefixes, tokens = Prefixes(PoolSpec(64, 1), 64, 50, telling=telling), list(range(200))
    for landed, kept, held in ((True, 0, 0), (False, 192, 192)):
        assert prefixes.hold("one", tokens) == held
        reuse = prefixes.begin("one", prefixes.want(220, 1, tokens, landed=landed))
        assert reuse is not None
        if not landed:
            assert reuse.tokens == 0
            reuse.take(192, [object()])
        reuse.leave(tokens, 199, [object()] * 3)
        prefixes.end("one")
        prefixes.validate()
        assert prefixes.prefix_blocks == 3 + (not landed)
        late = PrefixIndex()
        late.open(place, Epoch(1))
        for change in EngineMap(place, lambda salt, adapter: root, canonical=True).changes(telling.snapshot()):
            apply(late, change)
        for one in (index, late):
            assert one.usable(block_hashes(tokens, root)).in_cluster(place.cluster) == kept


def landed(prefixes: Prefixes, owner: str, prompt: list[int]) -> None:
    """All of the prompt's KV came from elsewhere; what is kept of it is rows."""
    reuse = prefixes.begin(owner, prefixes.want(len(prompt), 1, prompt, landed=True))
    assert reuse is not None
    length = len(prompt) - 1
    reuse.leave(prompt, length, [object() for _ in range(reuse.stored // 64, length // 64)])
    prefixes.end(owner)
    prefixes.validate()


def test_holds_of_the_same_rows_are_counted_once() -> None:
    """To let go of all of them would not make room, so none is."""
    prefixes, prompt = Prefixes(PoolSpec(64, 2), 64, 20), list(range(6 * 64 + 1))
    landed(prefixes, "first", prompt)
    other = prompt[: 5 * 64] + [9000] * 64
    assert prefixes.hold("one", other) == prefixes.hold("two", other) == 5 * 64
    assert prefixes.begin("works", Wanted(13 * 64)) is not None
    assert prefixes.begin("more", Wanted(5 * 64)) is None
    prefixes.validate()
    assert prefixes.prefix_blocks == 5
    assert prefixes.begin("less", Wanted(3 * 64)) is not None
    prefixes.validate()
    for owner in ("one", "two", "works", "less"):
        prefixes.end(owner)
    prefixes.validate()
    assert prefixes.holds == prefixes.working_blocks == 0


def test_rows_that_were_let_go_in_vain_are_gone_with_their_pieces() -> None:
    """A sequence has pinned most of what is held, which is seen when it is tried."""
    prefixes, prompt = Prefixes(PoolSpec(64, 2), 64, 20), list(range(6 * 64 + 1))
    landed(prefixes, "first", prompt)
    assert prefixes.hold("one", prompt[: 5 * 64] + [9000] * 64) == 5 * 64
    beside = prompt[: 4 * 64] + [9000] * 62
    assert prefixes.hold("beside", beside) == 4 * 64
    assert prefixes.begin("beside", prefixes.want(len(beside) + 1, 1, beside, landed=True)) is not None
    assert prefixes.begin("works", Wanted(10 * 64)) is not None  # the sixth block goes
    prefixes.validate()
    assert prefixes.begin("more", Wanted(2 * 64)) is None
    prefixes.validate()
    assert prefixes.prefix_blocks == 4
    for owner in ("one", "beside", "works"):
        prefixes.end(owner)
    prefixes.validate()


async def test_a_node_without_a_cache_asks_for_all(rig: Rig) -> None:
    without = NodeLimits(prefix_cache=False)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", node_limits=without))
    for turn in range(2):
        prefilled, _ = await pair.hand_over(f"t.{turn}", TEXT)
        assert moved(prefilled) == pair.far.engine.layout.bytes_at(len(TEXT))


async def test_several_hold_the_same(pair: Pair) -> None:
    await pair.hand_over("t.0", TEXT)
    answers = await asyncio.gather(*(pair.hand_over(f"t.{n}", f"{TEXT}{n} and so on") for n in range(1, 5)))
    for number, (prefilled, decoded) in enumerate(answers, 1):
        prompt = f"{TEXT}{number} and so on"
        assert decoded.text == (await pair.home.complete(prompt)).text
        assert moved(prefilled) == crossing(pair.far.engine.layout, len(prompt), most_held(len(prompt), len(TEXT)))


async def stopped(pair: Pair, at: int = 16) -> asyncio.Event:
    """The next prefill waits at `at` tokens until the event is set."""
    go_on = asyncio.Event()

    async def wait(start: int) -> None:
        if start >= at:
            await go_on.wait()

    pair.far.engine.before_chunk = wait
    return go_on


@pytest.mark.parametrize("how", ["client", "sender fails", "sender leaves", "deadline", "head"])
async def test_nothing_is_held_of_a_hand_over_that_ends_while_it_lands(pair: Pair, how: str) -> None:
    await pair.hand_over("t.0", TEXT)
    room, prompt = room_of(pair.home), TEXT + "another end, which is long enough for a chunk"
    stored = room.prefixes.prefix_blocks
    go_on = await stopped(pair, 128)
    deadline = {"deadline_ms": 300} if how == "deadline" else {}
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(prompt)))
    decoding = asyncio.create_task(pair.decode("t.1", prompt, params=deadline))
    await until(lambda: room.prefixes.holds == 1, "held")
    room.validate()
    assert room.prefixes._pool.room_blocks < room.prefixes.capacity_blocks
    if how == "client":
        decoding.cancel()
    elif how == "sender fails":

        async def fail(start: int) -> None:
            raise RuntimeError("out of memory")

        pair.far.engine.before_chunk = fail
        go_on.set()
    elif how == "sender leaves":
        await pair.far.transport.close()
    elif how == "head":
        prefilling.cancel()
    await asyncio.gather(prefilling, decoding, return_exceptions=True)
    await until(lambda: room.prefixes.holds == 0 and pair.home.held == (0, 0, 0), "given back")
    room.validate()
    assert room.prefixes._pool.room_blocks == room.prefixes.capacity_blocks
    assert room.prefixes.prefix_blocks == stored, "what was held is still there for the next one"


async def busy(node: Node) -> tuple[asyncio.Task[Answer], asyncio.Event]:
    """A sequence that takes blocks until the event is set."""
    go_on = asyncio.Event()

    async def wait(index: int) -> None:
        await go_on.wait()

    node.engine.before_token = wait
    answer = asyncio.create_task(node.complete("a" * 40, max_tokens=200))
    await until(lambda: node.engine.running == 1, "the first sequence")
    return answer, go_on


@pytest.mark.parametrize("leaves", [False, True])
async def test_whoever_waits_for_room_still_holds(rig: Rig, leaves: bool) -> None:
    small = replace(LIMITS, kv_blocks=25)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=small))
    await pair.hand_over("t.0", TEXT)
    expected = (await (await rig.node("home-2", "decode")).complete(TEXT + "wait", max_tokens=150)).text
    room = room_of(pair.home)
    first, go_on = await busy(pair.home)
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(TEXT + "wait")))
    decoding = asyncio.create_task(pair.decode("t.1", TEXT + "wait", max_tokens=150))
    await until(lambda: room.waiting == 1, "waiting")
    assert room.prefixes.holds == 1
    assert moved(await prefilling) < pair.far.engine.layout.bytes_at(len(TEXT) + 4)
    if leaves:
        decoding.cancel()
        await until(lambda: room.prefixes.holds == 0 and pair.home.held[1:] == (0, 0), "given back")
    go_on.set()
    assert (await first).status == 200
    if not leaves:
        assert (await decoding).text == expected


async def test_what_is_held_gives_way_and_is_there_all_the_same(rig: Rig) -> None:
    """A sequence that needs all memory begins while a hand-over that holds some of it lands. Its blocks go, not its
    pieces; so neither waits for the other."""
    small = replace(LIMITS, max_model_len=400, kv_blocks=25, max_sequences=1)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=small))
    await pair.hand_over("t.0", TEXT)
    room, prompt = room_of(pair.home), TEXT + "another end, which is long enough for a chunk"
    expected = (await rig.node("home-2", "decode")).complete(prompt)
    go_on = await stopped(pair, 128)
    handing = asyncio.create_task(pair.hand_over("t.1", prompt))
    await until(lambda: room.prefixes.holds == 1, "held")
    large = await pair.home.complete("b" * 300, max_tokens=99)
    assert large.status == 200
    assert room.prefixes.holds == 1
    assert room.prefixes._pool.usable(room.prefixes._chains.of(pair.tokens(prompt), 100), 100) == 0
    room.validate()
    go_on.set()
    prefilled, decoded = await handing
    assert moved(prefilled) == crossing(pair.far.engine.layout, len(prompt), most_held(len(prompt), len(TEXT)))
    assert decoded.text == (await expected).text
    again, _ = await pair.hand_over("t.2", prompt + "?")
    assert moved(again) == crossing(pair.far.engine.layout, len(prompt) + 1, most_held(len(prompt) + 1, len(prompt)))


async def test_a_prompt_that_fills_the_memory_does_not_wait_for_its_own_prefix(rig: Rig) -> None:
    small = replace(LIMITS, max_model_len=400, kv_blocks=25, max_sequences=1)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=small))
    for turn in range(3):
        prefilled, decoded = await pair.hand_over(f"t.{turn}", TEXT * 3, max_tokens=50)
        assert decoded.status == 200
        assert turn == 0 or moved(prefilled) < pair.far.engine.layout.bytes_at(len(TEXT * 3)) // 2
        room_of(pair.home).validate()


async def test_many_at_once_in_little_room(rig: Rig) -> None:
    """Each holds what it can; all are answered as by a node alone."""
    home = await rig.node("home-1", "decode", limits=replace(LIMITS, kv_blocks=26, max_model_len=192))
    pair = Pair(await rig.node("far-1", "prefill"), home)
    plain = await rig.node("home-2", "decode", node_limits=NodeLimits(prefix_cache=False))
    prompts = [f"{TEXT[: 60 + 5 * (n % 7)]}{n % 5}{TEXT}"[:120] for n in range(24)]
    alone = [(await plain.complete(prompt, max_tokens=30)).text for prompt in prompts]

    async def one(transfer: str, prompt: str) -> str:
        _, decoded = await pair.hand_over(transfer, prompt, max_tokens=30)
        return decoded.text

    for turn in range(2):
        asked = (one(f"t.{turn}.{number}", prompt) for number, prompt in enumerate(prompts))
        answers: list[Any] = await asyncio.gather(*asked)
        assert answers == alone
    assert await held(pair.home) > 0
