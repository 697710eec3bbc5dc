"""What clients may send wrongly: the right OpenAI error, and nothing left behind."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import pytest

from prfaas.core.routing.request import Life, RequestLife
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import MODEL, Rig, until


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "other"}, 404, "model_not_found", "model"),
        ({"temperature": 3}, 400, "invalid_value", "temperature"),
        ({"max_tokens": "ten"}, 400, "invalid_type", "max_tokens"),
        ({"prompt": [1, 2, 99_999]}, 400, "token_out_of_range", "prompt"),
        ({"prompt": []}, 400, "empty_prompt", "prompt"),
        ({"prompt": ["a", "b"]}, 400, "several_prompts", "prompt"),
        ({"stop": ""}, 400, "invalid_value", "stop"),
        ({"stream_options": {}}, 400, "invalid_value", "stream_options"),
        ({"prompt": "x" * 500}, 413, "context_length_exceeded", "prompt"),
        ({"max_tokens": 100_000}, 413, "context_length_exceeded", "max_tokens"),
        ({"prompt": "x" * 500, "max_tokens": 100_000}, 413, "context_length_exceeded", "prompt"),
        ({"max_token": 3}, 400, "unknown_parameter", "max_token"),
        ({"n": 9}, 400, "invalid_value", "n"),
        ({"logit_bias": {"5": 1}}, 400, "unsupported_parameter", "logit_bias"),
        ({"kv_transfer_params": {"do_remote_prefill": True}}, 400, "unsupported_parameter", "kv_transfer_params"),
    ],
)
async def test_bad_requests(grid: Grid, fields: dict[str, Any], status: int, code: str, param: str) -> None:
    answer = await grid.post("/v1/completions", {"model": MODEL, "prompt": "hello"} | fields)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert grid.outcomes() == {("none", "refused"): 1}


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"max_tokens": 100_000}, 413, "context_length_exceeded", "max_tokens"),
        ({"max_completion_tokens": 100_000}, 413, "context_length_exceeded", "max_completion_tokens"),
        ({"max_completion_tokens": 100_000, "max_tokens": 1}, 413, "context_length_exceeded", "max_completion_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 500}]}, 413, "context_length_exceeded", "messages"),
        ({"messages": [{"role": "user"}]}, 400, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "developer", "content": "x"}]}, 400, "chat_template_refused", "messages"),
    ],
)
async def test_bad_chats(grid: Grid, fields: dict[str, Any], status: int, code: str, param: str) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]} | fields
    answer = await grid.post("/v1/chat/completions", asked)
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (status, code, param)
    assert grid.outcomes() == {("none", "refused"): 1}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"model": "\xff"}', b"null"])
async def test_bodies_that_are_no_json_object(grid: Grid, raw: bytes) -> None:
    async with grid.session.post(grid.front.url + "/v1/completions", data=raw) as response:
        assert response.status == 400
        assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_a_body_that_is_too_large(grid: Grid) -> None:
    async with grid.session.post(grid.front.url + "/v1/completions", data=io.BytesIO(b" " * (2 << 20))) as response:
        assert response.status == 413


@pytest.mark.parametrize("header", ["0", "-1", "soon", "9" * 30])
async def test_a_bad_deadline(grid: Grid, header: str) -> None:
    answer = await grid.complete("hello", headers={"x-prfaas-deadline-ms": header})
    error = answer.json["error"]
    assert (answer.status, error["code"], error["param"]) == (400, "invalid_value", "x-prfaas-deadline-ms")
    assert "x-prfaas-deadline-ms" in answer.message


async def test_keys(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, api_keys=("k1", "k2")) as grid:
        assert (await grid.complete("x")).status == 401
        assert (await grid.complete("x", headers={"Authorization": "Bearer k3"})).status == 401
        assert (await grid.complete("x", headers={"Authorization": "Bearer k2"})).status == 200
        await grid.settled()


async def test_the_service_refuses_who_does_not_know_the_secret(grid: Grid) -> None:
    async with grid.session.get(grid.service.url + "/prfaas/v1/cluster") as response:
        assert response.status == 401


async def test_nobody_ready_is_503(rig: Rig) -> None:
    far = [await rig.node("far-p", "prefill")]
    async with two_clusters(rig, far=far, home=[], decoders=[]) as grid:
        answer = await grid.complete("hello")
        assert (answer.status, answer.code) == (503, "no_decode_node")
        assert answer.headers["Retry-After"] == "1"
        async with grid.session.get(grid.front.url + "/health") as response:
            assert response.status == 503


async def test_a_client_that_leaves_at_any_point_leaves_nothing(grid: Grid) -> None:
    """At every await of the legs: a gate stops the engines there, the client leaves, all is freed."""
    far, decoder = grid.far_nodes[0].engine, grid.decoders[0].engine
    for engine, hook, at in ((far, "before_chunk", 0), (far, "before_chunk", 48), (decoder, "before_token", 0)):
        reached, gate = asyncio.Event(), asyncio.Event()

        async def wait(step: int, at: int = at, reached: asyncio.Event = reached, gate: asyncio.Event = gate) -> None:
            if step == at:
                reached.set()
                await gate.wait()

        before = getattr(engine, hook)
        setattr(engine, hook, wait)
        async with grid.asking("x" * 120, max_tokens=8, stream=True):
            await asyncio.wait_for(reached.wait(), 10)
        await until(lambda: grid.gateway.in_flight == 0, "the gateway noticed")
        setattr(engine, hook, before)
        await grid.settled()
    assert grid.outcomes() == {("remote", "gone"): 3}


async def test_more_requests_than_the_limit_are_429_at_once(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoder = await rig.node("home-d", "decode")
    gate, before = asyncio.Event(), decoder.engine.before_token

    async def wait(_step: int) -> None:
        await gate.wait()

    decoder.engine.before_token = wait
    async with two_clusters(rig, far=far, home=home, decoders=[decoder], max_requests=2) as grid:
        async with grid.asking("one", max_tokens=2) as one, grid.asking("two", max_tokens=2) as two:
            await until(lambda: decoder.engine.running == 2, "both are at the decode node")
            third = await grid.complete("three", max_tokens=2)
            assert (third.status, third.code) == (429, "too_many_requests")
            assert third.headers["Retry-After"] == "1"
            decoder.engine.before_token = before
            gate.set()
            assert [(await one).status, (await two).status] == [200, 200]
        assert (await grid.complete("four", max_tokens=2)).status == 200
        await grid.settled()


@pytest.mark.parametrize("state", [Life.CREDIT, Life.PREFILL, Life.HANDOVER, Life.WHOLE])
async def test_a_client_that_leaves_before_a_leg_took_its_first_step(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, state: Life
) -> None:
    """In the same turn of the loop: the leg's task is cancelled before it ran. Credit must not wait for its lease."""
    handle, left = RequestLife.handle, []

    def leaving(self: RequestLife, now_ns: int, event: Any) -> Any:
        effects = handle(self, now_ns, event)
        if self.state is state and not left:
            left.append(self.request)
            grid.gateway.leave(self.request)
        return effects

    monkeypatch.setattr(RequestLife, "handle", leaving)
    async with grid.asking([65] if state is Life.WHOLE else "x" * 120, max_tokens=4):
        await until(lambda: bool(left), "the state")
        await until(lambda: grid.gateway.in_flight == 0, "the request is over")
    await grid.settled()
