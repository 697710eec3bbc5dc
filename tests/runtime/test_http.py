"""Servers refuse in one shape, name requests, and end what nobody waits for; clients see one tree of errors."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing

import aiohttp
import msgspec
import pytest
from aiohttp import web

from prfaas.core.errors import PeerFailure, ProtocolError, RequestError
from prfaas.runtime.client import Refused, call, line_bytes, make_session, post_lines
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.http import (
    Listening,
    event_stream,
    json_bytes_reply,
    json_reply,
    make_app,
    read_body,
    read_json,
    request_id,
    send_within,
    serve,
)
from prfaas.testing.rawhttp import raw_client, request_bytes
from prfaas.wire.control import PaceLease, PrefillUpdate

PACE = PaceLease("a->b", 8, 1000, 1)
Handle = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Bench:
    """A server whose one POST handler a test sets, and what happened to its requests."""

    def __init__(self) -> None:
        self.handle: Handle = self._unset
        self.began = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.listening: Listening | None = None

    @property
    def url(self) -> str:
        assert self.listening is not None
        return self.listening.url

    async def post(self, request: web.Request) -> web.StreamResponse:
        self.began.set()
        try:
            return await self.handle(request)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def health(self, request: web.Request) -> web.StreamResponse:
        return json_reply({"id": request_id(request)})

    async def listen(self, *, keys: tuple[str, ...] = (), idle_s: float = 75) -> Bench:
        app = make_app(max_body_bytes=1000, keys=keys)
        app.router.add_post("/x", self.post)
        app.router.add_get("/health", self.health)
        self.listening = await serve(app, "127.0.0.1", 0, idle_s=idle_s, grace_s=0.1)
        return self

    async def _unset(self, request: web.Request) -> web.StreamResponse:
        raise AssertionError("no handler")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    if made.listening is not None:
        await made.listening.close()


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with make_session("s3cret") as made:
        yield made


async def test_errors_have_one_shape(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise RequestError("no room", status=429, kind="rate_limit", code="busy", param="p", retry_after_s=3)

    bench.handle = refuse
    async with session.post(f"{bench.url}/x", headers={"x-request-id": "mine-1"}) as answer:
        assert (answer.status, answer.headers["Retry-After"], answer.headers["x-request-id"]) == (429, "3", "mine-1")
        assert await answer.json() == {
            "error": {"message": "no room", "type": "rate_limit", "param": "p", "code": "busy"}
        }

    async def peer(request: web.Request) -> web.StreamResponse:
        raise PeerFailure("reset", "gone")

    bench.handle = peer
    with pytest.raises(Refused, match="reset: a peer failed: reset: gone") as refused:
        await call(session, "POST", f"{bench.url}/x", PACE, PaceLease)
    assert (refused.value.status, refused.value.code) == (502, "reset")
    for method, path, status, allowed in (("GET", "/nowhere", 404, None), ("GET", "/x", 405, "POST")):
        async with session.request(method, bench.url + path) as answer:
            assert (answer.status, answer.headers.get("Allow")) == (status, allowed)
            assert path in (await answer.json())["error"]["message"]


async def test_an_unexpected_error_tells_nothing(
    bench: Bench, session: aiohttp.ClientSession, capfd: pytest.CaptureFixture[str]
) -> None:
    await bench.listen()

    async def fail(request: web.Request) -> web.StreamResponse:
        raise KeyError("inner secret")

    bench.handle = fail
    async with session.post(f"{bench.url}/x", headers={"x-request-id": "bad id\ttoo"}) as answer:
        body = await answer.json()
        name = answer.headers["x-request-id"]
    assert (answer.status, body["error"]["code"]) == (500, "internal_error")
    assert body["error"]["message"] == f"internal error; request {name}"
    assert len(name) == 32
    assert "inner secret" in capfd.readouterr().out


async def test_a_failure_in_mid_stream_cuts_it(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def half(request: web.Request) -> web.StreamResponse:
        response = event_stream()
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        raise RuntimeError("after the headers")

    bench.handle = half
    async with session.post(f"{bench.url}/x") as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await answer.read()
    assert (await call(session, "GET", f"{bench.url}/health", None, dict[str, str]))["id"]


async def test_bodies(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def echo(request: web.Request) -> web.StreamResponse:
        return json_reply(await read_json(request, PaceLease))

    bench.handle = echo
    assert await call(session, "POST", f"{bench.url}/x", PACE, PaceLease) == PACE
    for body, status, code in (
        (b"x" * 2000, 413, "body_too_large"),
        (gzip.compress(b" " * 100_000), 415, "unsupported_encoding"),
        (b"{", 400, "invalid_json"),
        (b'{"link": "\xff"}', 400, "invalid_json"),
        (b'{"link": 4}', 400, "invalid_json"),
        (b"[" * 900, 400, "invalid_json"),
    ):
        headers = {"Content-Encoding": "gzip"} if body.startswith(b"\x1f") else {}
        async with session.post(f"{bench.url}/x", data=body, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (status, code)


async def test_a_body_that_comes_too_slowly_or_broken(bench: Bench) -> None:
    await bench.listen()

    async def read(request: web.Request) -> web.StreamResponse:
        return json_bytes_reply(await read_body(request, timeout_s=0.05))

    bench.handle = read
    for sent, status in (
        (b"POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nabc", 408),
        (b"POST /x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\nabc", 400),
    ):
        assert bench.listening is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.listening.port)
        writer.write(sent)
        head = await reader.readuntil(b"\r\n")
        assert int(head.split()[1]) == status
        writer.close()
        await writer.wait_closed()


async def test_a_body_that_says_that_it_is_too_large_is_not_waited_for(bench: Bench) -> None:
    await bench.listen()

    async def read(request: web.Request) -> web.StreamResponse:
        return json_bytes_reply(await read_body(request))

    bench.handle = read
    assert bench.listening is not None
    async with raw_client(bench.listening.port) as client:
        await client.send(request_bytes("POST", "/x", [("Content-Length", "1001")]) + b"{")
        answer = await client.answer()
        assert answer is not None
        assert (answer.status, answer.error["code"]) == (413, "body_too_large")


async def test_a_client_that_does_not_read_is_cut_off(bench: Bench) -> None:
    await bench.listen()
    gone = asyncio.Event()

    async def much(request: web.Request) -> web.StreamResponse:
        try:
            return await send_within(request, json_bytes_reply(bytes(64 << 20)), loop_now_ns() + 50_000_000)
        finally:
            gone.set()

    bench.handle = much
    assert bench.listening is not None
    async with raw_client(bench.listening.port) as client:
        await client.send(request_bytes("POST", "/x", body=b""))
        await gone.wait()
    async with raw_client(bench.listening.port) as client:
        bench.handle = lambda request: send_within(request, json_bytes_reply(b"{}"), loop_now_ns() + 10**10)
        await client.send(request_bytes("POST", "/x", body=b"") * 2)
        for _ in range(2):
            answer = await client.answer()
            assert answer is not None
            assert answer.body == b"{}"


async def test_no_stack_is_logged_for_what_is_no_http(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.listen()
    assert bench.listening is not None
    for sent, status in (
        (b"\x16\x03\x01\x00\xb8\x01\x00\x00\xb4\x03", 400),
        (b"GET / SSH-2.0\r\n\r\n", 400),
        (request_bytes("GET", "/" + "a" * 9000), 414),
    ):
        async with raw_client(bench.listening.port) as client:
            await client.send(sent)
            assert [answer.status for answer in await client.answers()] == [status]
    assert caplog.records == []


async def test_slow_headers_are_cut(bench: Bench) -> None:
    await bench.listen(idle_s=0.05)
    assert bench.listening is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", bench.listening.port)
    writer.write(b"POST /x HTTP/1.1\r\nHost: ")
    async with asyncio.timeout(5):
        said = await reader.read()
    assert said.startswith(b"HTTP/1.0 408 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "head_timeout"
    writer.close()
    await writer.wait_closed()


async def test_keys(bench: Bench) -> None:
    await bench.listen(keys=("first-key", "second-key"))

    async def ok(request: web.Request) -> web.StreamResponse:
        return json_reply({})

    bench.handle = ok
    async with aiohttp.ClientSession() as plain:
        for shown, status in (
            (None, 401),
            ("Bearer wrong", 401),
            ("Bearer ", 401),
            ("Basic first-key", 401),
            ("Bearer sécond-key", 401),
            ("Bearer first-key", 200),
            ("bearer second-key", 200),
        ):
            headers = {"Authorization": shown} if shown is not None else {}
            async with plain.post(f"{bench.url}/x", headers=headers) as answer:
                assert answer.status == status
                if status == 401:
                    assert answer.headers["WWW-Authenticate"] == "Bearer"
                    assert (await answer.json())["error"]["code"] == "invalid_api_key"
        async with plain.get(f"{bench.url}/health") as answer:
            assert answer.status == 200
    async with make_session("second-key") as ours:
        assert await call(ours, "POST", f"{bench.url}/x", PACE, dict[str, str]) == {}


async def test_a_client_that_leaves_cancels(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def wait(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    bench.handle = wait
    calling = asyncio.create_task(call(session, "POST", f"{bench.url}/x", PACE, PaceLease))
    await bench.began.wait()
    calling.cancel()
    async with asyncio.timeout(5):
        await bench.cancelled.wait()


async def test_calls_that_fail(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def wait(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    bench.handle = wait
    with pytest.raises(PeerFailure, match="timeout"):
        await call(session, "POST", f"{bench.url}/x", PACE, PaceLease, timeout_s=0.05)

    async def other(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 2_000_000 if request.headers.get("big") else b"<html>")

    bench.handle = other
    with pytest.raises(ProtocolError, match="bad_reply"):
        await call(session, "POST", f"{bench.url}/x", PACE, PaceLease)
    url = bench.url
    assert bench.listening is not None
    await bench.listening.close()
    with pytest.raises(PeerFailure, match="unreachable"):
        await call(session, "POST", f"{url}/x", PACE, PaceLease)
    with pytest.raises(PeerFailure, match="unreachable"):
        await anext(post_lines(session, f"{url}/x", PACE, PrefillUpdate))


def lines_handler(*chunks: bytes, then: Callable[[web.Request], None] = lambda _: None) -> Handle:
    async def write(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        then(request)
        await response.write_eof()
        return response

    return write


async def collect(bench: Bench, session: aiohttp.ClientSession, seen: list[PrefillUpdate]) -> None:
    async with aclosing(post_lines(session, f"{bench.url}/x", PACE, PrefillUpdate, max_line=300)) as updates:
        seen += [update async for update in updates]


async def test_lines(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()
    queued, done = PrefillUpdate("queued", position=3), PrefillUpdate("done")
    raw = line_bytes(queued) + b"\n" + line_bytes(done)
    for cut in (1, 20, len(line_bytes(queued)), len(raw) - 1):
        bench.handle = lines_handler(raw[:cut], raw[cut:])
        seen: list[PrefillUpdate] = []
        await collect(bench, session, seen)
        assert seen == [queued, done]


@pytest.mark.parametrize(
    ("chunk", "error", "code"),
    [
        (b'{"state":"done"', PeerFailure, "cut_off"),
        (b'{"state":"asleep"}\n', ProtocolError, "bad_reply"),
        (b"x" * 400, ProtocolError, "line_too_long"),
        (b"x" * 400 + b"\n", ProtocolError, "line_too_long"),
    ],
)
async def test_bad_lines(
    bench: Bench, session: aiohttp.ClientSession, chunk: bytes, error: type[Exception], code: str
) -> None:
    await bench.listen()
    bench.handle = lines_handler(line_bytes(PrefillUpdate("queued")), chunk)
    seen: list[PrefillUpdate] = []
    with pytest.raises(error, match=code):
        await collect(bench, session, seen)


async def test_lines_cut_by_a_dead_peer(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    def abort(request: web.Request) -> None:
        assert request.transport is not None
        request.transport.abort()

    bench.handle = lines_handler(line_bytes(PrefillUpdate("queued")), then=abort)
    with pytest.raises(PeerFailure, match="cut_off"):
        await collect(bench, session, [])


async def test_a_refused_stream_of_lines(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def refuse(request: web.Request) -> web.StreamResponse:
        raise RequestError("full", status=429, code="queue_full", retry_after_s=2)

    bench.handle = refuse
    with pytest.raises(Refused) as refused:
        await collect(bench, session, [])
    assert (refused.value.status, refused.value.code, refused.value.retry_after_s) == (429, "queue_full", 2)


async def test_hanging_up_on_lines_cancels(bench: Bench, session: aiohttp.ClientSession) -> None:
    await bench.listen()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(line_bytes(PrefillUpdate("queued")))
        await asyncio.Event().wait()
        return response

    bench.handle = endless
    async with aclosing(post_lines(session, f"{bench.url}/x", PACE, PrefillUpdate)) as updates:
        assert (await anext(updates)).state == "queued"
    async with asyncio.timeout(5):
        await bench.cancelled.wait()


async def test_a_port_in_use(bench: Bench) -> None:
    await bench.listen()
    assert bench.listening is not None
    with pytest.raises(OSError, match="address already in use"):
        await serve(make_app(max_body_bytes=10), "127.0.0.1", bench.listening.port)


def test_error_bodies_are_json() -> None:
    reply = json_reply(msgspec.to_builtins(PACE))
    assert json.loads(bytes(reply.body)) == msgspec.to_builtins(PACE)  # type: ignore[arg-type]
    assert reply.content_type == "application/json"
