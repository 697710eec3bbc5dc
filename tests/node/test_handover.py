"""Remote prefill and local decode answer as one node alone does; KV that is wrong, missing or late is an error."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from prfaas.core.ids import Epoch, NodeName
from prfaas.engine.node.identity import NodeLimits
from prfaas.runtime.client import make_session
from prfaas.testing.noderig import LIMITS, MODEL, SECRET, Pair, Rig, until
from prfaas.transport.base import InHand
from prfaas.transport.tcp import TcpTransport

PROMPT = "It was the best of times, it was the worst of times."


@pytest.mark.parametrize("length", [1, 8, 9, 10, 11, 14, 15, 16, 17, 31, 32, 33, 100, 300])
async def test_same_answer_as_alone(pair: Pair, length: int) -> None:
    """With BOS in front, at every boundary of block, chunk and window."""
    prompt = (PROMPT * 8)[:length]
    prefilled, decoded = await pair.hand_over("t.1", prompt, max_tokens=12)
    assert (prefilled.status, decoded.status) == (200, 200)
    alone = await pair.home.complete(prompt, max_tokens=12)
    assert decoded.text == alone.text
    assert decoded.json["usage"] == alone.json["usage"]
    assert pair.home.engine.seen == {"prefill": 0, "landed": 1, "alone": 1}
    assert pair.far.engine.seen["prefill"] == 1
    about = prefilled.json["kv_transfer_params"]
    assert about["transfer_id"] == "t.1"
    assert about["outcome"] == "applied"
    assert about["bytes"] == pair.far.engine.layout.bytes_at(length)
    assert prefilled.json["usage"]["prompt_tokens"] == length + 1
    assert prefilled.text == ""


async def test_over_tcp_and_chat(rig: Rig) -> None:
    transports = [TcpTransport(NodeName(name), Epoch(5), SECRET.encode()) for name in ("far-1", "home-1")]
    far = await rig.node("far-1", "prefill", transport=transports[0], epoch=Epoch(5))
    home = await rig.node("home-1", "decode", transport=transports[1], epoch=Epoch(5))
    pair = Pair(far, home)
    turns = [{"role": "user", "content": PROMPT * 5}]
    body: dict[str, Any] = {"model": MODEL, "messages": turns, "max_tokens": 9, "temperature": 0, "stream": True}
    alone = await home.post("/v1/chat/completions", body)
    tokens = pair.tokens(f"<user>{PROMPT * 5}\n<assistant>")
    params = pair.params("chat.1", tokens)
    prefilled, decoded = await asyncio.gather(
        pair.prefill("chat.1", tokens), home.post("/v1/chat/completions", body | {"kv_transfer_params": params})
    )
    assert prefilled.status == 200
    assert decoded.text == alone.text
    assert len(decoded.text) == 9
    assert decoded.events[-1].is_done
    assert home.engine.seen["landed"] == 1


async def test_many_at_once(pair: Pair) -> None:
    prompts = [f"{i} {PROMPT}" for i in range(20)]
    alone = [(await pair.home.complete(prompt, max_tokens=8)).text for prompt in prompts]
    answers = await asyncio.gather(
        *(pair.hand_over(f"t.{i}", prompt, max_tokens=8, stream=i % 2 == 0) for i, prompt in enumerate(prompts))
    )
    assert [decoded.text for _, decoded in answers] == alone
    assert pair.home.engine.seen["landed"] == 20


async def test_kv_flows_while_prefill_computes(pair: Pair) -> None:
    """The decode side has bytes before the last chunk is computed."""
    last = asyncio.Event()

    async def wait(start: int) -> None:
        if start >= 48:
            await last.wait()

    pair.far.engine.before_chunk = wait
    running = asyncio.create_task(pair.hand_over("t.1", PROMPT))
    await until(lambda: b'prfaas_kv_bytes_total{link="far->home"}' in pair.home.server.metrics.text(), "bytes")
    assert not running.done()
    last.set()
    assert [answer.status for answer in await running] == [200, 200]


async def test_metrics_of_a_handover(pair: Pair) -> None:
    prefilled, _ = await pair.hand_over("t.1", PROMPT, max_tokens=5)
    moved = prefilled.json["kv_transfer_params"]["bytes"]
    await until(lambda: pair.home.held == (0, 0, 0))
    assert await pair.home.metric('prfaas_kv_bytes_total{link="far->home"}') == moved
    assert await pair.home.metric("vllm:generation_tokens_total") == 5
    assert await pair.home.metric("vllm:prompt_tokens_total") == len(PROMPT) + 1
    assert await pair.home.metric('vllm:request_success_total{finished_reason="length"') == 1
    assert await pair.home.metric("vllm:time_to_first_token_seconds_count") == 1
    assert await pair.home.metric("vllm:num_requests_running") == 0
    assert await pair.far.metric('prfaas_stage_seconds_count{stage="prefill"}') == 1


async def test_without_credit_it_is_taken_then(pair: Pair) -> None:
    prefilled, decoded = await asyncio.gather(
        pair.prefill("t.1", pair.tokens(PROMPT)), pair.decode("t.1", PROMPT, max_tokens=3)
    )
    assert (prefilled.status, decoded.status) == (200, 200)


async def test_one_token_is_local(pair: Pair) -> None:
    """A prompt of one token has no KV to hand over."""
    tokens = [65]
    params = pair.params("t.1", tokens)
    assert (await pair.home.credit("t.1", 1)).json["kv_bytes"] == 0
    answer = await pair.home.complete(tokens, max_tokens=2, kv_transfer_params=params)
    assert answer.status == 200
    assert answer.text == (await pair.home.complete(tokens, max_tokens=2)).text
    assert pair.home.engine.seen["landed"] == 0
    refused = await pair.prefill("t.2", tokens)
    assert (refused.status, refused.code) == (400, "nothing_to_prefill")


@pytest.mark.parametrize("wrong", [{"prompt_tokens": 7}, {"prompt_hash": "0" * 32}])
async def test_another_prompt_is_refused_not_guessed(pair: Pair, wrong: dict[str, Any]) -> None:
    assert (await pair.home.credit("t.1", 53)).status == 200
    answer = await pair.decode("t.1", PROMPT, params=wrong)
    assert (answer.status, answer.code) == (409, "prompt_mismatch")
    assert pair.home.held == (0, 0, 0)


@pytest.mark.parametrize(
    "wrong", [{"receiver": NodeName("other")}, {"epoch": Epoch(1)}, {"signed_for": "t.2"}, {"age_s": 999}]
)
async def test_a_bad_ticket(pair: Pair, wrong: dict[str, Any]) -> None:
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(PROMPT)))
    answer = await pair.decode("t.1", PROMPT, params={"ticket": pair.ticket("t.1", **wrong)})
    assert (answer.status, answer.code) == (502, "kv_transfer_failed")
    assert "ticket" in answer.message
    prefilling.cancel()


async def test_an_unreachable_sender(pair: Pair) -> None:
    answer = await pair.decode(
        "t.1", PROMPT, params={"remote": [{"host": "127.0.0.1", "port": 99}], "deadline_ms": 300}
    )
    assert (answer.status, answer.code) in ((502, "kv_transfer_failed"), (504, "deadline_exceeded"))


async def test_wrong_kv_never_answers(pair: Pair) -> None:
    """KV of another model revision that slipped through: the engine notices, nothing is generated."""
    other = [66] * len(pair.tokens(PROMPT))
    _, answer = await asyncio.gather(pair.prefill("t.1", other), pair.decode("t.1", PROMPT))
    assert (answer.status, answer.code) == (500, "internal_error")
    assert "layer" not in answer.message


async def test_the_prefill_fails_and_the_decode_hears_of_it(pair: Pair) -> None:
    async def fail(start: int) -> None:
        if start >= 16:
            raise RuntimeError("out of memory")

    pair.far.engine.before_chunk = fail
    prefilled, decoded = await pair.hand_over("t.1", PROMPT)
    assert (prefilled.status, prefilled.code) == (500, "internal_error")
    assert (decoded.status, decoded.code) == (502, "kv_transfer_failed")
    assert "engine" in decoded.message


async def test_the_decode_cancels_and_the_prefill_stops(pair: Pair) -> None:
    """The client leaves while KV is on its way."""
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        if start >= 16:
            await hold.wait()

    pair.far.engine.before_chunk = wait
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(PROMPT)))
    decoding = asyncio.create_task(pair.decode("t.1", PROMPT))
    await until(lambda: pair.home.server.transfers_in_use == 1, "receiving")
    decoding.cancel()
    prefilled = await prefilling
    assert (prefilled.status, prefilled.code) == (502, "kv_transfer_failed")
    assert "cancelled" in prefilled.message
    assert not hold.is_set()
    assert pair.far.engine.running == 0


async def test_the_head_hangs_up_on_the_prefill(pair: Pair) -> None:
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        await hold.wait()

    pair.far.engine.before_chunk = wait
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(PROMPT)))
    decoding = asyncio.create_task(pair.decode("t.1", PROMPT))
    await until(lambda: pair.far.engine.running == 1 and pair.home.server.transfers_in_use == 1, "both legs")
    prefilling.cancel()
    decoded = await decoding
    assert (decoded.status, decoded.code) == (502, "kv_transfer_failed")
    assert "cancelled" in decoded.message


async def test_nobody_fetches(rig: Rig) -> None:
    """No receiver within the lease: the prefill's memory is freed, its head told."""
    far = await rig.node("far-1", "prefill", node_limits=NodeLimits(transfer_lease_ns=50_000_000))
    pair = Pair(far, far)
    answer = await pair.prefill("t.1", pair.tokens(PROMPT))
    assert (answer.status, answer.code) == (502, "kv_transfer_failed")
    assert "lease" in answer.message


async def test_deadlines_of_both_legs(pair: Pair) -> None:
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        await hold.wait()

    pair.far.engine.before_chunk = wait
    prefilled, decoded = await asyncio.gather(
        pair.prefill("t.1", pair.tokens(PROMPT), deadline_ms=150),
        pair.decode("t.1", PROMPT, params={"deadline_ms": 80}),
    )
    assert (decoded.status, decoded.code) == (504, "deadline_exceeded")
    assert prefilled.status in (502, 504)
    answer = await pair.prefill("t.2", pair.tokens(PROMPT), deadline_ms=50)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")


async def test_the_prefill_node_goes_away(pair: Pair) -> None:
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        if start >= 16:
            await hold.wait()

    pair.far.engine.before_chunk = wait
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(PROMPT)))
    decoding = asyncio.create_task(pair.decode("t.1", PROMPT))
    await until(lambda: pair.home.server.transfers_in_use == 1, "receiving")
    await pair.far.transport.close()
    decoded, prefilled = await decoding, await prefilling
    assert (decoded.status, decoded.code) == (502, "kv_transfer_failed")
    assert prefilled.status == 502


async def test_a_transfer_whose_connections_are_not_all_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def offer(*_: object) -> None:
        raise InHand("transfer t.1 is in hand already")

    monkeypatch.setattr(pair.far.server._transport, "offer", offer)
    again = await pair.prefill("t.1", pair.tokens(PROMPT))
    assert (again.status, again.code) == (409, "duplicate_transfer")
    assert pair.far.server.blocks_in_use == 0


async def test_a_transfer_in_hand_twice(pair: Pair) -> None:
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        await hold.wait()

    pair.far.engine.before_chunk = wait
    first = asyncio.create_task(pair.hand_over("t.1", PROMPT, max_tokens=2))
    await until(lambda: pair.far.engine.running == 1 and pair.home.server._credits.unused == 0, "both legs")
    again = await pair.prefill("t.1", pair.tokens(PROMPT))
    assert (again.status, again.code) == (409, "duplicate_transfer")
    twice = await pair.decode("t.1", PROMPT)
    assert (twice.status, twice.code) == (409, "duplicate_transfer")
    assert (await pair.home.credit("t.1", 5)).status == 409
    assert (await pair.home.delete("/prfaas/v1/credit/t.1")).status == 200  # in use: ends by itself
    hold.set()
    assert [answer.status for answer in await first] == [200, 200]


async def test_bad_transfer_params(pair: Pair) -> None:
    good = pair.params("t.1", pair.tokens(PROMPT))
    wrongs: tuple[dict[str, Any], ...] = (
        {"transfer_id": ""},
        {"transfer_id": 5},
        {"transfer_id": "x" * 300},
        {"do_remote_decode": True},
        {"remote": []},
        {"ticket": ""},
        {"prompt_hash": ""},
        {"connections": 0},
        {"connections": 1000},
        {"deadline_ms": -1},
        {"remote": [{"host": 4}]},
    )
    for wrong in wrongs:
        answer = await pair.home.complete(PROMPT, kv_transfer_params=good | wrong)
        assert (answer.status, answer.json["error"]["param"]) == (400, "kv_transfer_params")


async def test_waiting_for_blocks_while_kv_has_landed(rig: Rig) -> None:
    """The decode side has no KV blocks yet: the KV stays in landing credit, the prefill side is free already."""
    small = replace(LIMITS, max_model_len=100, kv_blocks=6)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=small))
    hold = asyncio.Event()

    async def wait(index: int) -> None:
        await hold.wait()

    pair.home.engine.before_token = wait
    first = asyncio.create_task(pair.home.complete("a" * 40, max_tokens=40))
    await until(lambda: pair.home.engine.running == 1, "the first sequence")
    handing = asyncio.create_task(pair.hand_over("t.1", PROMPT, max_tokens=20))
    await until(lambda: pair.home.server._room is not None and pair.home.server._room.waiting == 1, "waiting")
    await until(lambda: pair.far.held == (0, 0, 0), "the prefill side is free")
    assert pair.home.held[2] > 0
    hold.set()
    assert (await first).status == 200
    assert [answer.status for answer in await handing] == [200, 200]


async def test_a_decode_that_leaves_while_it_waits_for_blocks(rig: Rig) -> None:
    small = replace(LIMITS, max_model_len=100, kv_blocks=6)
    pair = Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode", limits=small))
    hold = asyncio.Event()

    async def wait(index: int) -> None:
        await hold.wait()

    pair.home.engine.before_token = wait
    first = asyncio.create_task(pair.home.complete("a" * 40, max_tokens=40))
    await until(lambda: pair.home.engine.running == 1, "the first sequence")
    prefilling = asyncio.create_task(pair.prefill("t.1", pair.tokens(PROMPT)))
    decoding = asyncio.create_task(pair.decode("t.1", PROMPT, max_tokens=20))
    room = pair.home.server._room
    assert room is not None
    await until(lambda: room.waiting == 1, "waiting")
    decoding.cancel()
    await until(lambda: room.waiting == 0 and pair.home.held[1:] == (0, 0), "all but the first is free")
    hold.set()
    assert (await first).status == 200
    assert (await prefilling).status == 200


async def test_internal_endpoints_need_the_secret(pair: Pair) -> None:
    url = pair.home.listening.url
    async with make_session() as stranger:
        for method, path in (
            ("GET", "/prfaas/v1/node"),
            ("POST", "/prfaas/v1/credit"),
            ("DELETE", "/prfaas/v1/credit/t"),
            ("POST", "/prfaas/v1/pace"),
            ("GET", "/v1/models"),
            ("POST", "/v1/completions"),
            ("POST", "/v1/chat/completions"),
        ):
            async with stranger.request(method, url + path) as response:
                assert (response.status, (await response.json())["error"]["code"]) == (401, "invalid_api_key")
        for path in ("/health", "/metrics"):
            async with stranger.get(url + path) as response:
                assert response.status == 200


async def test_a_prefill_that_waits_for_room(rig: Rig) -> None:
    """First come first served; who hangs up leaves the line; what can never fit is refused at once, with the sizes."""
    small = replace(LIMITS, kv_blocks=4)
    pair = Pair(await rig.node("far-1", "prefill", limits=small), await rig.node("home-1", "decode"))
    hold = asyncio.Event()

    async def wait(start: int) -> None:
        await hold.wait()

    pair.far.engine.before_chunk = wait
    first = asyncio.create_task(pair.hand_over("t.1", PROMPT, max_tokens=3))
    await until(lambda: pair.far.engine.running == 1, "running")
    left = asyncio.create_task(pair.prefill("t.2", pair.tokens(PROMPT)))
    room = pair.far.server._room
    assert room is not None
    await until(lambda: room.waiting == 1, "waiting")
    second = asyncio.create_task(pair.hand_over("t.3", PROMPT, max_tokens=3))
    await until(lambda: room.waiting == 2, "waiting")
    late = await pair.prefill("t.4", pair.tokens(PROMPT), deadline_ms=30)
    assert (late.status, late.code) == (504, "deadline_exceeded")
    left.cancel()
    await until(lambda: room.waiting == 1, "one left")
    never = await pair.prefill("t.5", pair.tokens("a" * 80))
    assert (never.status, never.code) == (503, "kv_blocks_exceeded")
    assert "5 KV blocks, this node has 4" in never.message
    hold.set()
    for answer in (*await first, *await second):
        assert answer.status == 200
    assert pair.far.engine.seen["prefill"] == 2
