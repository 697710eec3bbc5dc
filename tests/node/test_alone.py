"""One node answers OpenAI's two endpoints by itself, and refuses what it should."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import aiohttp
import pytest
from openai import APIError, AsyncOpenAI

from prfaas.engine.base import Token
from prfaas.engine.node.identity import NodeLimits
from prfaas.testing.bytemodel import BOS, EOS, write_byte_model
from prfaas.testing.engine import DerivedEngine
from prfaas.testing.noderig import LIMITS, MODEL, SECRET, Node, Rig, until

TURNS: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.fixture
async def node(rig: Rig) -> Node:
    return await rig.node("home-1", "decode")


def scripted(node: Node, text: str) -> None:
    """Every answer of `node` is `text`, and an end mark."""
    node.engine.answer = [*text.encode()]


async def chat(node: Node, **fields: Any) -> Any:
    return await node.post("/v1/chat/completions", {"model": MODEL, "messages": TURNS, "temperature": 0} | fields)


def client_of(node: Node) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{node.listening.url}/v1", api_key=SECRET, max_retries=0)


async def test_the_official_client(node: Node) -> None:
    scripted(node, "Hello, wörld 😀!")
    async with client_of(node) as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        whole = await client.chat.completions.create(model=MODEL, messages=TURNS)
        assert whole.choices[0].message.content == "Hello, wörld 😀!"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        prompt = len("<system>Be brief.\n<user>Hi\n<assistant>") + 1
        generated = len("Hello, wörld 😀!".encode()) + 1  # the end mark was generated too
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (prompt, generated)
        assert whole.usage.total_tokens == prompt + generated
        chunks = [
            chunk
            async for chunk in await client.chat.completions.create(
                model=MODEL,
                messages=TURNS,
                stream=True,
                stream_options={"include_usage": True},
            )
        ]
        pieces = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
        assert "".join(pieces) == "Hello, wörld 😀!"
        assert not any("\ufffd" in piece for piece in pieces)
        assert chunks[0].choices[0].delta.role == "assistant"
        assert [c.choices[0].finish_reason for c in chunks if c.choices] == [None] * (len(chunks) - 2) + ["stop"]
        assert chunks[-1].usage == whole.usage
        completion = await client.completions.create(model=MODEL, prompt="x", max_tokens=3)
        assert (completion.choices[0].text, completion.choices[0].finish_reason) == ("Hel", "length")


@pytest.mark.parametrize("stream", [False, True])
async def test_lengths(node: Node, stream: bool) -> None:
    for max_tokens in (1, 2, 30):
        answer = await node.complete("prompt", max_tokens=max_tokens, stream=stream)
        assert len(answer.text) == max_tokens
    assert len((await node.complete("prompt", stream=stream)).text) == 16  # OpenAI's default for completions
    left = LIMITS.max_model_len - len("<system>Be brief.\n<user>Hi\n<assistant>") - 1
    assert len((await chat(node, stream=stream)).text) == left  # and for chats
    answer = await node.complete("a" * (LIMITS.max_model_len - 2), stream=stream)  # room for one more token
    assert len(answer.text) == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "stop", "expected", "finish", "tokens"),
    [
        ("one two three", " two", "one", "stop", 7),
        ("one two three", [" three", "two"], "one ", "stop", 7),
        ("one two", ["two!"], "one two", "stop", 8),
        ("one STO", ["STOP"], "one STO", "stop", 8),
        ("é😀é", ["😀"], "é", "stop", 6),
        ("now", None, "now", "stop", 4),
        ("END", "END", "", "stop", 3),
    ],
)
async def test_stop_strings(
    node: Node, stream: bool, text: str, stop: Any, expected: str, finish: str, tokens: int
) -> None:
    scripted(node, text)
    answer = await node.complete(
        "p", stop=stop, stream=stream, **({"stream_options": {"include_usage": True}} if stream else {})
    )
    assert answer.text == expected
    last = json.loads(answer.events[-3].data) if stream else answer.json
    assert last["choices"][0]["finish_reason"] == finish
    used = json.loads(answer.events[-2].data)["usage"] if stream else answer.json["usage"]
    assert used["completion_tokens"] == tokens


async def test_done_inside_the_text_is_no_end(node: Node) -> None:
    text = "data: [DONE]\n\ndata: [DONE]"
    scripted(node, text)
    answer = await node.complete("p", max_tokens=100, stream=True)
    assert answer.text == text
    assert [event.is_done for event in answer.events].count(True) == 1
    async with client_of(node) as client:
        stream = await client.completions.create(model=MODEL, prompt="p", max_tokens=100, stream=True)
        assert "".join([chunk.choices[0].text async for chunk in stream]) == text


async def test_an_unfinished_character_at_the_end(node: Node) -> None:
    node.engine.answer = [*"a😀".encode()[:-1]]
    for stream in (False, True):
        assert (await node.complete("p", stream=stream)).text == "a\ufffd"


async def test_end_marks_can_be_ignored(node: Node) -> None:
    node.engine.answer = [97, EOS, 98]
    assert (await node.complete("p")).text == "a"
    assert (await node.complete("p", ignore_eos=True, max_tokens=3)).text == "ab"


async def test_seeds(node: Node) -> None:
    one = (await node.complete("p", temperature=1, seed=1)).text
    assert (await node.complete("p", temperature=1, seed=1)).text == one
    assert (await node.complete("p", temperature=1, seed=2)).text != one


async def test_prompts_of_ids(node: Node) -> None:
    by_text = await node.complete("abc")
    by_ids = await node.complete([BOS, 97, 98, 99])
    assert by_ids.text == by_text.text
    assert (await node.complete([[BOS, 97, 98, 99]])).text == by_text.text


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/completions", {"prompt": "a", "model": "other"}, 404, "model_not_found"),
        ("/v1/completions", {"prompt": "a" * 400}, 413, "context_length_exceeded"),
        ("/v1/completions", {"prompt": "a" * 200_000}, 413, "context_length_exceeded"),
        ("/v1/completions", {"prompt": "a" * 390, "max_tokens": 10}, 413, "context_length_exceeded"),
        ("/v1/completions", {"prompt": [1, 258]}, 400, "token_out_of_range"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 0}, 400, "invalid_value"),
        ("/v1/completions", {"prompt": "a", "n": 9}, 400, "invalid_value"),
        ("/v1/completions", {"prompt": "a", "suffix": "z"}, 400, "unsupported_parameter"),
        ("/v1/completions", {"prompt": "a", "temprature": 0}, 400, "unknown_parameter"),
        ("/v1/chat/completions", {"messages": []}, 400, "invalid_value"),
        ("/v1/chat/completions", {"messages": [{"role": "developer", "content": "x"}]}, 400, "chat_template_refused"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 400}]},
            413,
            "context_length_exceeded",
        ),
    ],
)
async def test_refusals(node: Node, path: str, body: dict[str, Any], status: int, code: str | None) -> None:
    answer = await node.post(path, {"model": MODEL} | body)
    assert (answer.status, answer.json["error"]["code"]) == (status, code)
    assert node.engine.seen["alone"] == 0


async def test_too_long_names_both_numbers(node: Node) -> None:
    answer = await node.complete("a" * 390, max_tokens=77)
    assert all(number in answer.message for number in ("400", "391", "77", "468"))


async def test_broken_bodies(node: Node) -> None:
    for raw in (b"", b"{", b'{"model":"\xff"}', b"[1]", b'{"model": "derived", "prompt": "\\ud800"}'):
        answer = await node.post("/v1/completions", None, raw=raw)
        assert (answer.status, answer.json["error"]["type"]) == (400, "invalid_request_error")
    assert (await node.get("/v1/completions")).status == 405
    assert (await node.get("/v2")).status == 404


async def test_a_body_cut_off(node: Node) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", node.listening.port)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: 100\r\n\r\n"
    writer.write(head.encode() + b'{"model"')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    assert (await node.complete("p")).status == 200


async def test_a_model_without_a_template(rig: Rig) -> None:
    write_byte_model(rig.directory, chat=False)
    node = await rig.node("home-1", "decode")
    answer = await chat(node)
    assert (answer.status, answer.code) == (400, "no_chat_template")
    assert (await node.complete("p")).status == 200


async def test_while_the_model_loads(rig: Rig) -> None:
    loaded = asyncio.Event()

    async def wait(_: int) -> None:
        await loaded.wait()

    engine = DerivedEngine(LIMITS)
    engine.before_start = wait
    node = await rig.node("home-1", "decode", engine=engine, wait=False)
    assert (await node.get("/health")).status == 503
    assert (await node.get("/metrics")).status == 200
    for answer in (await node.get("/prfaas/v1/node"), await node.complete("p"), await node.get("/v1/models")):
        assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "starting", "1")
    loaded.set()
    await until(lambda: node.server._room is not None, "ready")
    assert (await node.get("/health")).status == 200
    assert (await node.complete("p")).status == 200


async def test_node_info(node: Node) -> None:
    info = (await node.get("/prfaas/v1/node")).json
    assert info["node"] == "home-1"
    assert info["role"] == "decode"
    assert info["epoch"] == node.identity.epoch
    assert info["max_model_len"] == LIMITS.max_model_len
    assert info["data"] == [{"host": "127.0.0.1", "port": node.identity.data[0].port}]
    assert re.fullmatch(r"\w+, \d+ layers?, revision .+, [0-9a-f]{64}", info["layout"])


async def test_pace(node: Node) -> None:
    lease = {"link": "far->home", "rate_bps": 8_000_000, "lease_ms": 1000, "fence": 3}
    assert (await node.post("/prfaas/v1/pace", lease)).json == {}
    assert (await node.post("/prfaas/v1/pace", lease | {"rate_bps": 0})).status == 200  # takes the pace back
    assert (await node.post("/prfaas/v1/pace", lease | {"rate_bps": -1})).status == 400
    assert (await node.post("/prfaas/v1/pace", {"link": "x"})).status == 400


async def test_the_client_leaves_before_the_first_token(node: Node) -> None:
    hold = asyncio.Event()

    async def wait(_: int) -> None:
        await hold.wait()

    node.engine.before_token = wait
    for stream in (False, True):
        asking = asyncio.create_task(node.complete("p", stream=stream))
        await until(lambda: node.engine.running == 1, "running")
        asking.cancel()
        await until(lambda: node.engine.running == 0 and node.server.blocks_in_use == 0, "stopped")


async def test_the_client_leaves_in_mid_stream(node: Node) -> None:
    hold = asyncio.Event()

    async def wait(index: int) -> None:
        if index > 3:
            await hold.wait()

    node.engine.before_token = wait
    body = json.dumps({"model": MODEL, "prompt": "p", "stream": True})
    async with node.session.post(node.listening.url + "/v1/completions", data=body) as response:
        assert response.status == 200
        await response.content.readany()
        assert node.server.blocks_in_use > 0
    await until(lambda: node.engine.running == 0 and node.server.blocks_in_use == 0, "stopped")


async def test_the_client_leaves_while_waiting_for_room(rig: Rig) -> None:
    node = await rig.node("home-1", "decode", limits=replace(LIMITS, max_sequences=1))
    hold = asyncio.Event()

    async def wait(_: int) -> None:
        await hold.wait()

    node.engine.before_token = wait
    first = asyncio.create_task(node.complete("p"))
    await until(lambda: node.engine.running == 1, "running")
    room = node.server._room
    assert room is not None
    second, third = asyncio.create_task(node.complete("p")), asyncio.create_task(node.complete("p"))
    await until(lambda: room.waiting == 2, "waiting")
    second.cancel()
    await until(lambda: room.waiting == 1, "one left")
    hold.set()
    assert (await first).status == (await third).status == 200
    assert await node.metric("vllm:num_requests_waiting") == 0


async def test_too_many_wait(rig: Rig) -> None:
    node = await rig.node(
        "home-1", "decode", limits=replace(LIMITS, max_sequences=1), node_limits=NodeLimits(queue_length=1)
    )
    hold = asyncio.Event()

    async def wait(_: int) -> None:
        await hold.wait()

    node.engine.before_token = wait
    first = asyncio.create_task(node.complete("p"))
    await until(lambda: node.engine.running == 1, "running")
    second = asyncio.create_task(node.complete("p"))
    room = node.server._room
    assert room is not None
    await until(lambda: room.waiting == 1, "waiting")
    third = await node.complete("p")
    assert (third.status, third.code, third.headers["Retry-After"]) == (429, "queue_full", "1")
    hold.set()
    assert (await first).status == (await second).status == 200


async def test_what_can_never_fit_fails_at_once(rig: Rig) -> None:
    node = await rig.node("home-1", "decode", limits=replace(LIMITS, kv_blocks=2))
    answer = await node.complete("a" * 30, max_tokens=10)
    assert (answer.status, answer.code) == (503, "kv_blocks_exceeded")
    assert "3 KV blocks, this node has 2" in answer.message
    assert (await node.complete("a" * 20, max_tokens=10)).status == 200


async def test_an_engine_that_fails_first(node: Node) -> None:
    async def fail(_: int) -> None:
        raise RuntimeError("secret path /x")

    node.engine.before_token = fail
    for stream in (False, True):
        answer = await node.complete("p", stream=stream)
        assert (answer.status, answer.code) == (500, "internal_error")
        assert "secret" not in answer.message


async def test_an_engine_that_fails_in_mid_stream(node: Node) -> None:
    async def fail(index: int) -> None:
        if index == 3:
            raise RuntimeError("secret path /x")

    node.engine.before_token = fail
    answer = await node.complete("p", stream=True)
    assert answer.status == 200
    assert len(answer.events) == 4
    *pieces, last = answer.events
    assert last.name == "error"
    assert json.loads(last.data)["error"]["code"] == "internal_error"
    assert not any(event.is_done for event in answer.events)
    assert "secret" not in answer.body.decode()
    assert len(pieces) == 3
    whole = await node.complete("p")
    assert (whole.status, whole.code) == (500, "internal_error")
    async with client_of(node) as client:
        stream = await client.completions.create(model=MODEL, prompt="p", stream=True)
        with pytest.raises(APIError, match="internal error"):
            [chunk async for chunk in stream]


async def test_an_engine_that_ends_without_a_reason(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    async def short(*_: Any) -> AsyncIterator[Token]:
        yield Token(97)

    monkeypatch.setattr(node.engine, "generate", short)
    assert (await node.complete("p")).status == 500
    streamed = await node.complete("p", stream=True)
    assert streamed.events[-1].name == "error"


async def test_deadlines(node: Node) -> None:
    hold = asyncio.Event()
    first = 0

    async def wait(index: int) -> None:
        if index >= first:
            await hold.wait()

    node.engine.before_token = wait
    params = {"transfer_id": "r.1", "deadline_ms": 60}
    for stream in (False, True):
        answer = await node.complete("p", stream=stream, kv_transfer_params=params)
        assert (answer.status, answer.code) == (504, "deadline_exceeded")
    first = 3
    answer = await node.complete("p", kv_transfer_params=params)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    answer = await node.complete("p", stream=True, kv_transfer_params=params)
    assert (answer.status, len(answer.text)) == (200, 3)
    assert json.loads(answer.events[-1].data)["error"]["code"] == "deadline_exceeded"
    assert answer.events[-1].name == "error"


async def test_the_default_deadline(rig: Rig) -> None:
    node = await rig.node("home-1", "decode", node_limits=NodeLimits(deadline_ns=60_000_000))

    async def wait(_: int) -> None:
        await asyncio.Event().wait()

    node.engine.before_token = wait
    assert (await node.complete("p")).status == 504


@pytest.mark.slow
async def test_a_client_that_does_not_read(rig: Rig) -> None:
    """Its socket is full: past the deadline it is cut off, and what it held is free."""
    node = await rig.node("home-1", "decode", limits=replace(LIMITS, max_model_len=200_000, kv_blocks=20_000))
    params = {"transfer_id": "r.1", "deadline_ms": 1500}
    body = {"model": MODEL, "prompt": "p", "stream": True, "max_tokens": 150_000, "kv_transfer_params": params}
    node.engine.answer = [97] * 150_000
    reader, writer = await asyncio.open_connection("127.0.0.1", node.listening.port, limit=1024)
    raw = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {SECRET}\r\nContent-Length: {len(raw)}\r\n"
    )
    writer.write(head.encode() + b"\r\n" + raw)
    await until(lambda: node.engine.running == 1, "running")
    await until(lambda: node.engine.running == 0 and node.server.blocks_in_use == 0, "cut off")
    received = bytearray()
    with suppress(ConnectionError):
        while chunk := await reader.read(1 << 20):
            received += chunk
    assert b"[DONE]" not in received
    assert received.count(b"data: ") < 150_000
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def test_closing_ends_what_runs(rig: Rig) -> None:
    node = await rig.node("home-1", "decode")

    async def wait(_: int) -> None:
        await asyncio.Event().wait()

    node.engine.before_token = wait
    asking = asyncio.create_task(node.complete("p"))
    await until(lambda: node.engine.running == 1, "running")
    node.listening._runner._shutdown_timeout = 0.05
    await node.server.close()
    with pytest.raises(aiohttp.ClientError):
        await asking
    assert node.held == (0, 0, 0)
    del rig.nodes["home-1"]
