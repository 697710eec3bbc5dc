"""A node keeps what it computed, says what it did not compute again, and gives everything back whoever leaves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from prfaas.core.cache.layout import KVLayout
from prfaas.core.transfer.extent import extent_bytes, needed
from prfaas.engine.node.identity import NodeLimits
from prfaas.testing.noderig import LIMITS, MODEL, Answer, Node, Pair, Rig, until

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune, must be in want of "


def cached(answer: Answer) -> int:
    assert answer.status == 200, answer.body
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


def crossing(layout: KVLayout, length: int, held: int) -> int:
    """Bytes that cross to a receiver that holds `held` tokens."""
    parts = {(part.layer, part.name): part for part in layout.parts}
    return sum(extent_bytes(parts[one.layer, one.part], one) for one in needed(layout, length, held))


async def computed(node: Node) -> tuple[int, int, int, int]:
    """Prompt tokens computed, cached, received, held, as /metrics has them."""
    lines = (await node.get("/metrics")).body.decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if line.startswith("prfaas_prompt_tokens_total"))
    sources = "computed", "cached", "received", "held"
    computed, cached, received, held = (
        int(float(found.get(f'prfaas_prompt_tokens_total{{source="{source}"}}', 0))) for source in sources
    )
    return computed, cached, received, held


async def prefix_blocks(node: Node) -> int:
    return int(await node.metric("prfaas_prefix_blocks"))


@pytest.fixture
async def node(rig: Rig) -> Node:
    return await rig.node("home-1", "decode")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_computes_each_turn_once(node: Node, rig: Rig, stream: bool) -> None:
    """At 64-token boundaries of what came before, and the answers are those of a node that keeps nothing."""
    plain = await rig.node("home-2", "decode", node_limits=NodeLimits(prefix_cache=False))
    options = {"stream_options": {"include_usage": True}} if stream else {}
    turns: list[dict[str, str]] = [{"role": "system", "content": TEXT}]
    before = 0
    for number in range(3):
        turns.append({"role": "user", "content": f"{number} {TEXT[:30]}"})
        body: Any = {"model": MODEL, "messages": turns, "temperature": 0, "max_tokens": 20, "stream": stream, **options}
        answer, alone = [await one.post("/v1/chat/completions", body) for one in (node, plain)]
        assert answer.text == alone.text
        assert cached(answer) == before - before % 64
        assert cached(alone) == 0
        used = answer.usage
        before = used["prompt_tokens"] + used["completion_tokens"] - 1
        turns.append({"role": "assistant", "content": answer.text})
    asked, hits, received, _ = await computed(node)
    assert (asked, received) == (node.engine.computed + 3, 0)  # the last token of each prompt is decoded
    assert asked + hits == (await computed(plain))[0]
    assert hits == await node.metric("vllm:prefix_cache_hits_total") > 0
    assert asked + hits == await node.metric("vllm:prefix_cache_queries_total")
    assert await prefix_blocks(plain) == 0 < await prefix_blocks(node)


async def test_the_same_prompt_and_branches(node: Node) -> None:
    first = await node.complete(TEXT + "a wife")
    again = await node.complete(TEXT + "a wife")
    assert (cached(first), cached(again)) == (0, 64)
    assert again.text == first.text
    hits = [cached(await node.complete(TEXT * 2 + end * 27)) for end in ("cat", "dog", "owl")]
    assert hits == [64, 64, 192]  # the second one leaves the first one's way at 223 tokens, and a snapshot before that


async def test_who_must_compute_all_does(node: Node) -> None:
    """Scores of a prompt are not kept; what it leaves is."""
    for _ in range(2):
        answer = await node.complete(TEXT, echo=True, logprobs=1, max_tokens=2)
        assert cached(answer) == 0
    assert cached(await node.complete(TEXT)) == 64


async def test_several_choices_resume_and_the_first_one_is_kept(node: Node) -> None:
    prompt = TEXT[:70]
    await node.complete(prompt, max_tokens=1)
    answer = await node.complete(prompt, n=3, temperature=1, seed=1, max_tokens=80)
    assert cached(answer) == 64
    kept, other = (prompt + answer.choices[index].text for index in (0, 1))
    assert cached(await node.complete(kept + "?")) == 128
    assert cached(await node.complete(other + "?")) == 64


async def test_an_answer_cut_by_a_stop_string_is_kept(node: Node) -> None:
    node.engine.answer = [*(b"x" * 70 + b"STOP" + b"y" * 70)]
    answer = await node.complete(TEXT, stop="STOP", max_tokens=200)
    assert answer.text == "x" * 70
    length = len(TEXT) + 1 + 70
    assert cached(await node.complete(TEXT + answer.text + "?")) == length - length % 64


async def test_a_prefill_node_reuses_too_and_sends_what_is_lacking(pair: Pair) -> None:
    """How much the decode node held was kept of what it computed alone before, and changes nothing of the rest."""
    one, two = TEXT + "one", TEXT + "two, which is longer"
    for number, (prompt, hit) in enumerate([(one, 0), (one, 64), (two, 64), (two, 128)]):
        alone = await pair.home.complete(prompt)
        before, (*_, received, held) = pair.far.engine.computed, await computed(pair.home)
        prefilled, decoded = await pair.hand_over(f"t.{number}", prompt)
        *_, received_now, held_now = await computed(pair.home)
        held = held_now - held
        # As far as the window at the end crosses whole, 10 rows; or at a snapshot, which has the window's rows.
        assert held == max((len(prompt) - 10) // 16 * 16, (len(prompt) - 1) // 64 * 64)
        assert received_now - received == len(prompt) - held
        assert decoded.text == alone.text
        assert cached(prefilled) == cached(decoded) == hit
        assert pair.far.engine.computed - before == len(prompt) - hit
        assert prefilled.json["kv_transfer_params"]["bytes"] == crossing(pair.far.engine.layout, len(prompt), held)
    assert (await computed(pair.far))[1] == 64 + 64 + 128


async def test_a_chat_that_came_over_the_link_goes_on_at_home(pair: Pair) -> None:
    prompt = TEXT + "a wife"
    _, decoded = await pair.hand_over("t.1", prompt, max_tokens=40)
    assert cached(decoded) == 0
    answer = await pair.home.complete(prompt + decoded.text + " What now?")
    assert cached(answer) == 128


async def test_a_full_node_forgets_and_goes_on(rig: Rig) -> None:
    node = await rig.node("home-1", "decode", limits=replace(LIMITS, kv_blocks=12, max_model_len=192))
    for number in range(20):
        answer = await node.complete(f"{number:03} {TEXT}", max_tokens=4)
        assert cached(answer) == 0
        room = node.server._room
        assert room is not None
        room.validate()
        assert room.prefixes.prefix_blocks <= room.prefixes.capacity_blocks == 16
    assert cached(await node.complete(f"019 {TEXT}", max_tokens=4)) == 64


async def test_many_at_once_in_little_room(rig: Rig) -> None:
    """Snapshots on the way give way to whoever waits; all are answered as by a node alone."""
    node = await rig.node("home-1", "decode", limits=replace(LIMITS, kv_blocks=26, max_model_len=192))
    plain = await rig.node("home-2", "decode", node_limits=NodeLimits(prefix_cache=False))
    prompts = [f"{TEXT[: 60 + 5 * (n % 7)]}{n % 5}"[:120] for n in range(30)]
    alone = [(await plain.complete(prompt, max_tokens=30)).text for prompt in prompts]
    answers = await asyncio.gather(*(node.complete(prompt, max_tokens=30) for prompt in prompts))
    assert [answer.text for answer in answers] == alone


async def test_whoever_leaves_at_any_token(node: Node) -> None:
    """In mid-answer, streamed: what was computed stays, nothing else does."""
    room = node.server._room
    assert room is not None
    for leave_at in (0, 1, 5, 40, 80):
        hold, reached = asyncio.Event(), asyncio.Event()

        async def wait(index: int, at: int = leave_at, hold: Any = hold, reached: Any = reached) -> None:
            if index == at:
                reached.set()
                await hold.wait()

        node.engine.before_token = wait
        body = {"model": MODEL, "prompt": TEXT, "max_tokens": 100, "temperature": 0, "stream": True}
        asking = asyncio.create_task(node.post("/v1/completions", None, raw=json.dumps(body).encode()))
        await reached.wait()
        asking.cancel()
        await until(lambda: node.server.blocks_in_use == 0 and node.engine.running == 0, "given back")
        room.validate()

        async def go_on(index: int) -> None:
            """No wait."""

        node.engine.before_token = go_on
        assert cached(await node.complete(TEXT, max_tokens=1)) == 64
    assert cached(await node.complete(TEXT + (await node.complete(TEXT, max_tokens=79)).text)) == 128


async def test_whoever_leaves_at_any_chunk_of_a_prefill(pair: Pair) -> None:
    """Head gone, receiver gone, engine failed: nothing stays but prefixes that can be read back."""
    room = pair.far.server._room
    assert room is not None
    prompt = TEXT * 3
    for number, stop_at in enumerate((0, 16, 64, 128, 240, 320)):
        hold, reached = asyncio.Event(), asyncio.Event()

        async def wait(start: int, at: int = stop_at, fails: bool = number % 2 == 1) -> None:
            if start >= at:
                reached.set()  # noqa: B023
                if fails:
                    raise RuntimeError("no more")
                await hold.wait()  # noqa: B023

        pair.far.engine.before_chunk = wait
        asking = asyncio.create_task(pair.prefill(f"t.{number}", pair.tokens(f"{number}{prompt}")))
        await reached.wait()
        asking.cancel()
        await until(lambda: pair.far.held == (0, 0, 0) and pair.far.engine.running == 0, "given back")
        room.validate()

    async def go_on(start: int) -> None:
        """No wait."""

    pair.far.engine.before_chunk = go_on
    for number in range(6):
        prefilled, decoded = await pair.hand_over(f"u.{number}", f"{number}{prompt}")
        assert (prefilled.status, decoded.status) == (200, 200)
        room.validate()
