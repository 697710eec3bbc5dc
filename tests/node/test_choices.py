"""Several choices, log-probabilities and echoed prompts of one node: their shapes, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import ClientError, web
from openai import AsyncOpenAI
from openai.types import Completion
from openai.types.chat import ChatCompletion

from prfaas.engine.node.choices import Choices
from prfaas.testing.bytemodel import BOS, EOS
from prfaas.testing.engine import DerivedEngine
from prfaas.testing.noderig import LIMITS, MODEL, SECRET, Node, Pair, Rig, until

PROMPT = "The quick brown fox jumps over the lazy dog. 0123456789"


@pytest.fixture
async def node(rig: Rig) -> Node:
    return await rig.node("home-1", "decode")


async def chat(node: Node, **fields: Any) -> Any:
    turns = [{"role": "user", "content": "Hi"}]
    return await node.post("/v1/chat/completions", {"model": MODEL, "messages": turns, "temperature": 0} | fields)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_places_of_tokens_in_the_text(node: Node, stream: bool) -> None:
    """A token of an unfinished character stands where the character does; what has no text stands where it is."""
    node.engine.answer = [*"é!".encode()]
    answer = await node.complete("aé", echo=True, logprobs=1, stream=stream)
    (told,) = answer.choices
    assert (told.text, told.finish) == ("aéé!", "stop")
    assert told.logprobs is not None
    assert told.logprobs["tokens"] == [
        "<s>", "a", "bytes:\\xc3", "bytes:\\xa9", "bytes:\\xc3", "bytes:\\xa9", "!", "</s>",
    ]  # fmt: skip
    assert told.logprobs["text_offset"] == [0, 0, 1, 1, 2, 2, 3, 4]
    own, top = told.logprobs["token_logprobs"], told.logprobs["top_logprobs"]
    assert own[0] is top[0] is None
    assert all(value < 0 for value in own[1:])
    for token, value, others in zip(told.logprobs["tokens"][1:], own[1:], top[1:], strict=True):
        assert others[token] == value
        assert len(others) == (1 if max(others.values()) == value else 2)  # the likeliest, and itself
    alone = (await node.complete("aé", logprobs=1)).choices[0]
    assert alone.logprobs is not None
    assert alone.logprobs["text_offset"] == [0, 0, 1, 2]
    assert alone.logprobs["token_logprobs"] == own[4:]


async def test_prompts_of_ids_are_echoed_as_text(node: Node) -> None:
    node.engine.answer = [*b"!"]
    answer = await node.complete([BOS, *"naïve".encode(), EOS, 98], echo=True, logprobs=0, max_tokens=1)
    (told,) = answer.choices
    assert told.text == "naïveb!"
    assert told.logprobs is not None
    assert told.logprobs["tokens"][-3:] == ["</s>", "b", "!"]
    assert told.logprobs["text_offset"] == [0, 0, 1, 2, 2, 3, 4, 5, 5, 6]


async def test_chats_tell_bytes(node: Node) -> None:
    node.engine.answer = [*"😀".encode()]
    answer = await chat(node, logprobs=True, top_logprobs=3)
    whole = ChatCompletion.model_validate_json(answer.body, strict=True)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert logprobs.refusal is None
    assert bytes(byte for one in logprobs.content[:4] for byte in one.bytes or []).decode() == "😀"
    assert [one.token for one in logprobs.content] == ["\\xf0", "\\x9f", "\\x98", "\\x80", "</s>"]
    for one in logprobs.content:
        assert [other.logprob for other in one.top_logprobs] == [-0.25, -0.5, -0.75]
        assert all(other.bytes == list(other.token.encode()) for other in one.top_logprobs)
    plain = ChatCompletion.model_validate_json((await chat(node, logprobs=True)).body, strict=True)
    assert plain.choices[0].logprobs is not None
    assert all(one.top_logprobs == [] for one in plain.choices[0].logprobs.content or [])
    assert (await chat(node)).json["choices"][0]["logprobs"] is None


async def test_the_official_client(node: Node) -> None:
    async with AsyncOpenAI(base_url=f"{node.listening.url}/v1", api_key=SECRET, max_retries=0) as client:
        ask: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "n": 3, "seed": 1, "max_tokens": 5}
        scored_whole = await client.completions.create(**ask, logprobs=2)
        Completion.model_validate(scored_whole.model_dump(), strict=True)
        whole = await client.completions.create(**ask, logprobs=2, echo=True)
        assert [choice.index for choice in whole.choices] == [0, 1, 2]
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 15
        assert whole.usage.prompt_tokens == len(PROMPT) + 1
        texts = ["", "", ""]
        async for chunk in await client.completions.create(**ask, logprobs=2, echo=True, stream=True):
            for choice in chunk.choices:
                texts[choice.index] += choice.text
        assert texts == [choice.text for choice in whole.choices]
        stream = client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], n=2, logprobs=True, stream=True, max_tokens=4
        )
        roles, scored, ends = [], 0, []
        async for part in await stream:
            for one in part.choices:
                roles += [(one.index, one.delta.role)] if one.delta.role else []
                scored += len(one.logprobs.content or []) if one.logprobs else 0
                ends += [(one.index, one.finish_reason)] if one.finish_reason else []
        assert sorted(roles) == [(0, "assistant"), (1, "assistant")]
        assert sorted(ends) == [(0, "length"), (1, "length")]
        assert scored == 8


async def test_choices_that_end_at_different_times(node: Node) -> None:
    """Each ends by its own end mark or stop string, once; the others go on."""
    answers = [(await node.complete("p", seed=i, temperature=1, max_tokens=30)).text for i in range(4)]
    stop = [answers[0][3:5], answers[1][10:12], answers[2][20:22]]
    expected = [
        (await node.complete("p", seed=i, temperature=1, max_tokens=30, stop=stop)).choices[0] for i in range(4)
    ]
    assert len({len(one.text) for one in expected}) == 4
    for stream in (False, True):
        answer = await node.complete("p", seed=0, n=4, temperature=1, max_tokens=30, stop=stop, stream=stream)
        assert answer.choices == expected


@pytest.mark.parametrize(
    "limits", [{"max_sequences": 1}, {"max_sequences": 3}, {"kv_blocks": 2}, {"kv_blocks": 5}], ids=str
)
@pytest.mark.parametrize("stream", [False, True])
async def test_more_choices_than_the_node_runs_at_once(rig: Rig, limits: dict[str, Any], stream: bool) -> None:
    """They take turns; two such requests do not wait for each other, and one hand-over serves all the same."""
    pair = Pair(
        await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=replace(LIMITS, **limits))
    )
    most = 0

    async def look(_: int) -> None:
        nonlocal most
        most = max(most, pair.home.engine.running)

    pair.home.engine.before_token = look
    ask: dict[str, Any] = {"n": 7, "seed": 3, "temperature": 1, "max_tokens": 5, "stream": stream}
    prompt = PROMPT[:20]
    expected = [(await pair.home.complete(prompt, **ask | {"n": 1, "seed": 3 + i})).text for i in range(7)]
    most = 0
    answers = await asyncio.gather(*(pair.hand_over(f"t.{i}", prompt, **ask) for i in range(2)))
    for prefilled, decoded in answers:
        assert (prefilled.status, decoded.status) == (200, 200)
        assert [choice.text for choice in decoded.choices] == expected
    assert most == limits.get("max_sequences", limits.get("kv_blocks", 0) // 2)
    assert pair.far.engine.seen["prefill"] == 2
    assert pair.home.engine.seen["landed"] == 14


async def test_kv_is_kept_until_the_last_choice_has_it_and_no_longer(rig: Rig) -> None:
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode"))
    hold = asyncio.Event()
    asked = 0

    async def wait(index: int) -> None:
        nonlocal asked
        asked += index == 0
        if asked > 2 or index > 2:
            await hold.wait()

    pair.home.engine.before_token = wait
    handing = asyncio.create_task(pair.hand_over("t.1", PROMPT, n=3, max_tokens=9, stream=True))
    await until(lambda: pair.home.engine.running == 3 and asked == 3, "two choices have begun, one not")
    assert pair.home.held[2] > 0
    hold.set()
    prefilled, decoded = await handing
    assert (prefilled.status, decoded.status) == (200, 200)
    assert len(decoded.choices) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_leaves_while_choices_run(rig: Rig, stream: bool) -> None:
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode"))
    hold = asyncio.Event()

    async def wait(index: int) -> None:
        if index == 3:
            await hold.wait()

    pair.home.engine.before_token = wait
    handing = asyncio.create_task(pair.hand_over("t.1", PROMPT, n=4, max_tokens=9, stream=stream))
    await until(lambda: pair.home.engine.running == 4, "all run")
    handing.cancel()
    await until(lambda: pair.home.engine.running == 0 and pair.home.held == (0, 0, 0), "all is free")
    assert not hold.is_set()


async def test_stopping_is_not_cut_short(monkeypatch: pytest.MonkeyPatch, node: Node) -> None:
    """A client that left fails a write first; then its request is cancelled, perhaps while all is being stopped."""
    write, stop, writes, cut = web.StreamResponse.write, Choices.aclose, 0, 0

    async def fail(response: web.StreamResponse, data: bytes) -> None:
        nonlocal writes
        writes += 1
        if writes == 6:  # the next turn of each choice was just asked for, none has begun
            raise ConnectionResetError("the client left")
        await write(response, data)

    async def cancelled_at_once(choices: Choices) -> None:
        nonlocal cut
        cut += 1
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        await stop(choices)

    monkeypatch.setattr(web.StreamResponse, "write", fail)
    monkeypatch.setattr(Choices, "aclose", cancelled_at_once)
    with pytest.raises(ClientError):
        await node.complete(PROMPT, n=4, max_tokens=40, stream=True)
    await until(lambda: node.engine.running == 0 and node.held == (0, 0, 0), "all is free")
    assert cut == 1


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_one_choice_fails_and_the_others_are_stopped(node: Node, at: int, stream: bool) -> None:
    calls = 0

    async def fail(index: int) -> None:
        nonlocal calls
        calls += index == at
        if calls == 2:
            raise RuntimeError("secret path /x")
        if index > at + 1:
            await asyncio.Event().wait()

    node.engine.before_token = fail
    answer = await node.complete("p", n=3, max_tokens=9, stream=stream)
    assert "secret" not in answer.body.decode()
    if stream and answer.status == 200:
        assert answer.events[-1].name == "error"
        assert not any(event.is_done for event in answer.events)
    else:
        assert (answer.status, answer.code) == (500, "internal_error")
    await until(lambda: node.engine.running == 0, "all are stopped")


async def test_a_deadline_ends_all_choices(node: Node) -> None:
    async def hang(index: int) -> None:
        if index == 2:
            await asyncio.Event().wait()

    node.engine.before_token = hang
    params = {"transfer_id": "t", "deadline_ms": 60}
    answer = await node.complete("p", n=3, max_tokens=9, kv_transfer_params=params)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    assert node.engine.running == 0


async def test_an_engine_that_tells_nothing_is_no_500(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = DerivedEngine.generate

    async def silent(self: Any, tokens: Any, sampling: Any, landed: Any, reuse: Any) -> Any:
        async for token in generate(self, tokens, sampling, landed, reuse):
            yield replace(token, logprobs=None, prompt=())

    monkeypatch.setattr(DerivedEngine, "generate", silent)
    for fields in ({"logprobs": 1}, {"logprobs": 1, "echo": True, "max_tokens": 0}, {"logprobs": 0, "echo": True}):
        answer = await node.complete("p", **fields)
        assert (answer.status, answer.code) == (400, "unsupported_parameter")
        assert answer.json["error"]["param"] == "logprobs"
    assert (await node.complete("p", n=2, echo=True)).status == 200


async def test_an_echo_alone_asks_no_engine(node: Node) -> None:
    for stream in (False, True):
        answer = await node.complete("tell me", echo=True, max_tokens=0, n=2, stream=stream)
        assert [(choice.text, choice.finish) for choice in answer.choices] == [("tell me", "length")] * 2
    assert answer.events[-1].is_done
    assert node.engine.seen["alone"] == 0
    full = "a" * (LIMITS.max_model_len - 1)  # and a BOS: all that the context holds
    assert (await node.complete(full, echo=True, max_tokens=0, logprobs=1)).status == 200
    for fields in ({"max_tokens": 1}, {"echo": True}, {}):
        assert (await node.complete(full, **fields)).status == 413
    assert (await node.complete(full + "a", echo=True, max_tokens=0)).status == 413


async def test_an_echo_is_never_the_decode_leg_of_a_hand_over(rig: Rig) -> None:
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode"))
    answer = await pair.decode("t.1", PROMPT, echo=True)
    assert (answer.status, answer.json["error"]["param"]) == (400, "kv_transfer_params")


async def test_a_long_echo_is_scored_off_the_loop(rig: Rig) -> None:
    """Thousands of entries, in one body and in one event."""
    limits = replace(LIMITS, max_model_len=4000, kv_blocks=1000)
    node = await rig.node("home-1", "decode", limits=limits)
    prompt = "naïve 😀 " * 200
    (whole,) = (await node.complete(prompt, echo=True, logprobs=5, max_tokens=2)).choices
    (stream,) = (await node.complete(prompt, echo=True, logprobs=5, max_tokens=2, stream=True)).choices
    assert whole == stream
    assert whole.logprobs is not None
    assert len(whole.logprobs["tokens"]) == len(prompt.encode()) + 3
    offsets = whole.logprobs["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[-1] == len(whole.text) - 1


async def test_counts(node: Node) -> None:
    await node.complete("p", n=3, max_tokens=4)
    assert await node.metric("vllm:generation_tokens_total") == 12
    assert await node.metric("vllm:prompt_tokens_total") == 2
    assert await node.metric('vllm:request_success_total{finished_reason="length"') == 3
    last = await node.complete("p", n=3, max_tokens=4, stream=True, stream_options={"include_usage": True})
    assert json.loads(last.events[-2].data)["usage"]["completion_tokens"] == 12
