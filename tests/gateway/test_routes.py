"""Answers through the gateway equal what one node says that computes all of it; the header says the way."""

from __future__ import annotations

import asyncio
import io
import json

import pytest

from prfaas.engine.base import Limits
from prfaas.testing.bytemodel import VOCAB
from prfaas.testing.grid import THRESHOLD, Grid, two_clusters
from prfaas.testing.noderig import MODEL, Rig, until

LONG, SHORT = "x" * 120, "hello"
REMOTE = "remote; cluster=far; reason=long"
LOCAL = "local; cluster=home; reason=short"


@pytest.mark.parametrize(("prompt", "way"), [(LONG, REMOTE), (SHORT, LOCAL)])
@pytest.mark.parametrize("stream", [False, True])
async def test_completions(grid: Grid, prompt: str, way: str, stream: bool) -> None:
    alone = await grid.decoders[0].complete(prompt, max_tokens=12)
    answer = await grid.complete(prompt, max_tokens=12, stream=stream)
    assert answer.status == 200
    assert answer.headers["x-prfaas-route"] == way
    assert answer.text == alone.text
    assert grid.decoders[0].engine.seen["landed"] == 1
    assert len(answer.headers["X-Request-ID"]) > 8, dict(answer.headers)


async def test_chat_with_turns(grid: Grid) -> None:
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u" * 100}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 9}
    alone = await grid.decoders[0].post("/v1/chat/completions", body)
    answer = await grid.post("/v1/chat/completions", body)
    assert answer.headers["x-prfaas-route"] == REMOTE
    assert answer.text == alone.text
    assert answer.json["usage"] == alone.json["usage"]


@pytest.mark.parametrize("tokens", [THRESHOLD, THRESHOLD + 1])
async def test_the_threshold_is_strict(grid: Grid, tokens: int) -> None:
    answer = await grid.complete([65] * tokens, max_tokens=2)
    assert answer.headers["x-prfaas-route"] == (REMOTE if tokens > THRESHOLD else LOCAL)


async def test_one_token_has_nothing_to_hand_over(grid: Grid) -> None:
    answer = await grid.complete([65], max_tokens=2)
    assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=single"
    assert grid.decoders[0].engine.seen["alone"] == 1


async def test_done_in_generated_text_ends_nothing(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoder = await rig.node("home-d", "decode")
    text = "data: [DONE]\n\ndata: {}\n\n"
    decoder.engine.answer = list(text.encode())
    async with two_clusters(rig, far=far, home=home, decoders=[decoder]) as grid:
        answer = await grid.complete(LONG, max_tokens=60, stream=True)
        assert answer.text == text
        assert answer.events[-1].is_done
        assert sum(event.is_done for event in answer.events) == 1
        await grid.settled()
    assert grid.outcomes() == {("remote", "ok"): 1}


async def test_the_clients_own_fields_reach_the_node_untouched(grid: Grid) -> None:
    answer = await grid.complete(
        SHORT, max_tokens=4, user="me", stream=True, stream_options={"include_usage": True}, stop=["\x7f"]
    )
    assert json.loads(answer.events[-2].data)["usage"]["completion_tokens"] == 4


async def test_prefills_are_shared_over_the_nodes_of_a_cluster(rig: Rig) -> None:
    far = [await rig.node(f"far-{i}", "prefill") for i in range(2)]
    home = [await rig.node("home-p", "prefill")]
    decoders = [await rig.node(f"home-d{i}", "decode") for i in range(2)]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        gate = asyncio.Event()

        async def wait(_start: int) -> None:
            await gate.wait()

        for node in far:
            node.engine.before_chunk = wait
        asked = asyncio.gather(*(grid.complete(f"{i}" + LONG, max_tokens=3) for i in range(8)))
        await until(lambda: [node.engine.running for node in far] == [4, 4], "as many at each, none being faster")
        gate.set()
        assert {answer.status for answer in await asked} == {200}
        assert [node.engine.seen["landed"] for node in decoders] == [4, 4]
        await grid.settled()


@pytest.mark.slow
async def test_a_prompt_of_a_megabyte_of_ids_goes_through_both_heads(rig: Rig) -> None:
    roomy = Limits(max_model_len=200_000, max_sequences=4, vocab_size=VOCAB, block_tokens=16, kv_blocks=20_000)
    far, home = [await rig.node("far-p", "prefill", limits=roomy)], [await rig.node("home-p", "prefill", limits=roomy)]
    decoders = [await rig.node("home-d", "decode", limits=roomy)]
    async with two_clusters(
        rig, far=far, home=home, decoders=decoders, max_body_bytes=4 << 20, deadline_ns=60 * 10**9
    ) as grid:
        body = json.dumps({"model": MODEL, "prompt": [200] * 150_000, "max_tokens": 2, "temperature": 0}, indent=1)
        assert len(body) > 1 << 20
        async with grid.session.post(grid.front.url + "/v1/completions", data=io.BytesIO(body.encode())) as response:
            assert response.status == 200, await response.text()
            assert response.headers["x-prfaas-route"] == REMOTE
        await grid.settled()
