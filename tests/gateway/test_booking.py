"""Each request to a door that serves is booked once, with a route and an outcome, however it ends."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.engine.node import answer
from prfaas.model.text import LARGE, Text
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import MODEL, Rig, until
from prfaas.testing.rawhttp import raw_client, request_bytes

DONE = b"data: [DONE]\n\n"


def ask(**fields: Any) -> bytes:
    body = {"model": MODEL, "prompt": "hi", "max_tokens": 2} | fields
    return request_bytes("POST", "/v1/completions", body=json.dumps(body).encode())


async def test_every_way_to_be_refused(rig: Rig) -> None:
    home, decoders = [await rig.node("home-p", "prefill")], [await rig.node("home-d", "decode")]
    keys = {"Authorization": "Bearer k"}
    async with two_clusters(rig, far=[], home=home, decoders=decoders, api_keys=("k",), max_requests=1) as grid:
        asked = 0
        for status, fields, headers in (
            (401, {}, {}),
            (400, {"prompt": 7}, keys),
            (404, {"model": "other"}, keys),
            (413, {"prompt": "x" * 500}, keys),
            (413, {"prompt": [65] * 500}, keys),
            (415, {}, keys | {"Content-Encoding": "gzip"}),
            (417, {}, keys | {"Expect": "cake"}),
            (400, {}, keys | {"x-prfaas-deadline-ms": "soon"}),
        ):
            assert (await grid.complete(**{"prompt": "hi", "headers": headers} | fields)).status == status
            asked += 1
            assert grid.outcomes() == {("none", "refused"): asked}
        for method, path, status in (("GET", "/v1/completions", 405), ("PUT", "/v1/chat/completions", 405)):
            async with grid.session.request(method, grid.front.url + path, headers=keys) as said:
                assert said.status == status
            asked += 1
        for path in ("/health", "/v1/models", "/v1/completions/", "/nowhere"):  # no doors that serve
            async with grid.session.get(grid.front.url + path, headers=keys):
                pass
        assert grid.outcomes() == {("none", "refused"): asked}
        assert (await grid.complete("hi", headers=keys)).status == 200
        assert grid.outcomes() == {("none", "refused"): asked, ("local", "ok"): 1}


async def test_more_than_are_served_at_once(rig: Rig) -> None:
    decoder, gate = await rig.node("home-d", "decode"), asyncio.Event()

    async def wait(_step: int) -> None:
        await gate.wait()

    decoder.engine.before_token = wait
    async with two_clusters(rig, far=[], home=[], decoders=[decoder], max_requests=1) as grid:
        async with grid.asking("one", max_tokens=2) as one:
            await until(lambda: decoder.engine.running == 1, "it is at the decode node")
            assert (await grid.complete("two")).status == 429
            gate.set()
            assert (await one).status == 200
        assert grid.outcomes() == {("none", "refused"): 1, ("local", "ok"): 1}


async def test_placed_nowhere(rig: Rig) -> None:
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=[], home=[], decoders=decoders, whole_limit=20) as grid:
        refused = await grid.complete("x" * 120)
        assert (refused.status, refused.code) == (503, "no_prefill_node")
        assert grid.outcomes() == {("none", "refused"): 1}


async def test_a_client_that_leaves_while_it_is_tokenized(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    reached = asyncio.Event()

    async def forever(*_: Any) -> Any:
        reached.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Text, "encode", forever)
    async with grid.asking("x" * 120):
        await reached.wait()
    await until(lambda: grid.outcomes() == {("none", "gone"): 1}, "it is booked")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_a_prompt_that_cannot_fit_is_not_tokenized(
    grid: Grid, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("tokenized")

    monkeypatch.setattr(Text, "_encode", never)
    long = "x" * (2 * LARGE)
    prompt = {"prompt": long} if path == "/v1/completions" else {"messages": [{"role": "user", "content": long}]}
    answer = await grid.post(path, {"model": MODEL, "max_tokens": 1} | prompt)
    added = 1 if path == "/v1/completions" else len("<user>\n<assistant>")
    assert (answer.status, answer.code) == (413, "context_length_exceeded")
    assert f"the prompt has at least {2 * LARGE + added}, and" in answer.message
    assert grid.outcomes() == {("none", "refused"): 1}


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_who_has_the_end_mark_was_answered(grid: Grid, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Though the decode node has not ended its stream, and the client leaves at once."""
    ended = asyncio.Event()

    class Lasting(web.StreamResponse):
        async def write_eof(self, data: bytes = b"") -> None:
            await ended.wait()
            await super().write_eof(data)

    def lasting() -> web.StreamResponse:
        return Lasting(headers={"Content-Type": "text/event-stream"})

    monkeypatch.setattr(answer, "event_stream", lasting)
    async with raw_client(grid.front.port) as client:
        await client.send(ask(stream=True))
        assert DONE in await client.until(DONE)
        if how == "reset":
            client.abort()
    await until(lambda: grid.gateway.in_flight == 0, "it is over")
    ended.set()
    assert grid.outcomes() == {("local", "ok"): 1}


async def test_a_refusal_has_a_code() -> None:
    with pytest.raises(TypeError, match="code"):
        RequestError("what programs could not tell from others")  # type: ignore[call-arg]
