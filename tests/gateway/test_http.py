"""HTTP as it should not be, at the gateway's port: a right error, or a plain and correct answer of HTTP's own, and
nothing left behind."""

from __future__ import annotations

import asyncio
import gzip
import json
from dataclasses import replace
from typing import Any

import pytest

from prfaas.gateway import front
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import LIMITS, MODEL, Rig, until
from prfaas.testing.rawhttp import RawAnswer, raw_client, request_bytes

PATH = "/v1/completions"
ASK: dict[str, Any] = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
GOOD = json.dumps(ASK).encode()
LONG = json.dumps(ASK | {"prompt": "x" * 120, "max_tokens": 40, "stream": True}).encode()


def post(*headers: tuple[str, str], body: bytes | None = GOOD, version: str = "1.1") -> bytes:
    return request_bytes("POST", PATH, headers, body, version)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = post(("Transfer-Encoding", "chunked"), body=None)
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


HEALTH = request_bytes("GET", "/health")

GOOD_ENOUGH: dict[str, bytes] = {
    "plain": post(),
    "absolute form": request_bytes("POST", "http://h" + PATH, body=GOOD),
    "a query": request_bytes("POST", PATH + "?api-version=1", body=GOOD),
    "chunked": chunked(GOOD[:7], GOOD[7:]),
    "chunked byte by byte, with a trailer": chunked(*(bytes([byte]) for byte in GOOD), end=b"0\r\nx: y\r\n\r\n"),
    "not compressed": post(("Content-Encoding", "identity")),
    "of another type": post(("Content-Type", "text/plain")),
    "a wish for another protocol": post(("Connection", "Upgrade"), ("Upgrade", "h2c")),
    "websockets": post(("Connection", "Upgrade"), ("Upgrade", "websocket")),
    "a header that is no ASCII": post(("x", "\xe9")),
    "a request id with a tab": post(("x-request-id", "a\tb")),
    "keys that nobody asked for": post(("Authorization", "Bearer a"), ("Authorization", "Bearer b")),
    "HTTP/1.0": post(version="1.0"),
}

# What is no HTTP is refused (400 unless TELLING says more), and the connection closed.
NO_HTTP: dict[str, bytes] = {
    "a method that nobody knows": request_bytes("FROB", PATH),
    "a long line": request_bytes("GET", "/" + "a" * 9000),
    "a long header": post(("x", "a" * 9000)),
    "many headers": post(*((f"x-{index}", "a") for index in range(200))),
    "two lengths": post(("Content-Length", "3")),
    "one length twice": post(("Content-Length", str(len(GOOD)))),
    "a negative length": post(("Content-Length", "-1"), body=None),
    "a length in words": post(("Content-Length", "ten"), body=None),
    "a signed length": post(("Content-Length", "+5"), body=None),
    "an endless length": post(("Content-Length", "9" * 40), body=None),
    "a length and chunks": post(("Transfer-Encoding", "chunked")),
    "a transfer encoding that ends nowhere": post(("Transfer-Encoding", "identity"), body=None) + GOOD,
    "chunks without size": post(("Transfer-Encoding", "chunked"), body=None) + b"zz\r\n",
    "a chunk without end": post(("Transfer-Encoding", "chunked"), body=None) + b"f" * 40 + b"\r\n",
    "a body longer than it says": post(("Content-Length", "10"), body=None) + GOOD,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": bytes.fromhex("16030100b8010000b403"),
    "garbage": b"\x00\xff\x01garbage\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "a NUL in a header": post(("x", "a\0b")),
    "a folded header": b"GET /health HTTP/1.1\r\nHost: h\r\nx: a\r\n b\r\n\r\n",
    "bare line feeds": b"GET /health HTTP/1.1\nHost: h\n\n",
    "a blank in a name": b"GET /health HTTP/1.1\r\nHost: h\r\nx : a\r\n\r\n",
    "a byte that no path has": request_bytes("GET", "/\xff"),
    "no version": b"GET /health\r\n\r\n",
}
TELLING: dict[str, tuple[int, str]] = {
    "a long line": (414, "url_too_long"),
    "a long header": (431, "header_too_large"),
    "many headers": (431, "header_too_large"),
}
"""Status and code of what has one of its own."""

ZIP = ("Content-Encoding", "gzip")
REFUSED: dict[str, tuple[bytes, int, str]] = {
    "the wrong method": (request_bytes("GET", PATH), 405, "method_not_allowed"),
    "options": (request_bytes("OPTIONS", PATH), 405, "method_not_allowed"),
    "delete, with a body": (request_bytes("DELETE", PATH, body=GOOD), 405, "method_not_allowed"),
    "a post to what is only read": (request_bytes("POST", "/v1/models", body=GOOD), 405, "method_not_allowed"),
    "a slash too many": (request_bytes("POST", PATH + "/", body=GOOD), 404, "not_found"),
    "two slashes": (request_bytes("POST", "/" + PATH, body=GOOD), 404, "not_found"),
    "a way up": (request_bytes("GET", "/v1/../health"), 404, "not_found"),
    "an escaped way up": (request_bytes("GET", "/v1/%2e%2e/health"), 404, "not_found"),
    "a NUL": (request_bytes("GET", "/%00"), 404, "not_found"),
    "a proxy": (request_bytes("CONNECT", "h:80"), 404, "not_found"),
    "all options": (request_bytes("OPTIONS", "*"), 404, "not_found"),
    "gzip": (post(ZIP, body=gzip.compress(GOOD)), 415, "unsupported_encoding"),
    "a gzip bomb": (post(ZIP, body=gzip.compress(b" " * (8 << 20))), 415, "unsupported_encoding"),
    "brotli": (post(("Content-Encoding", "br")), 415, "unsupported_encoding"),
    "two encodings": (post(("Content-Encoding", "identity"), ZIP), 415, "unsupported_encoding"),
    "a length that is too large": (post(("Content-Length", str(2 << 30)), body=None), 413, "body_too_large"),
    "chunks that are too many": (chunked(*[b" " * 65536] * 20), 413, "body_too_large"),
    "no body": (post(body=None), 400, "invalid_json"),
    "an empty body": (post(body=b""), 400, "invalid_json"),
    "blanks": (post(body=b" \r\n\t "), 400, "invalid_json"),
    "an empty chunked body": (chunked(), 400, "invalid_json"),
    "a form": (post(body=b"model=derived&prompt=x"), 400, "invalid_json"),
    "UTF-16": (post(body=GOOD.decode().encode("utf-16")), 400, "invalid_json"),
    "a body that is longer inside": (post(body=GOOD + GOOD), 400, "invalid_json"),
    "two deadlines": (post(("x-prfaas-deadline-ms", "100"), ("X-PrfaaS-Deadline-Ms", "200")), 400, "invalid_value"),
    "digits of another script": (post(("x-prfaas-deadline-ms", "\xb2")), 400, "invalid_value"),
    "a wish that nobody knows": (post(("Expect", "cake")), 417, "expectation_failed"),
    "the same of what is only read": (request_bytes("GET", "/health", [("Expect", "cake")]), 417, "expectation_failed"),
}  # fmt: skip


async def told(grid: Grid, sent: bytes) -> tuple[RawAnswer, bool]:
    """The one answer, and whether the connection goes on: whether /health is answered after it."""
    async with raw_client(grid.front.port) as client:
        await client.send(sent)
        answer = await client.answer()
        assert answer is not None
        if answer.status == 413:  # the rest of the body is still awaited, for a while
            return answer, False
        await client.send(HEALTH)
        after = await client.answer()
        return answer, after is not None and after.status == 200


async def test_what_is_odd_and_right(grid: Grid) -> None:
    for name, sent in GOOD_ENOUGH.items():
        answer, goes_on = await told(grid, sent)
        assert answer.status == 200, name
        assert json.loads(answer.body)["choices"][0]["finish_reason"] == "length", name
        assert goes_on == (name != "HTTP/1.0"), name
        assert "\t" not in answer.headers["x-request-id"]


async def test_what_is_no_http(grid: Grid) -> None:
    for name, sent in NO_HTTP.items():
        answer, goes_on = await told(grid, sent)
        status, code = TELLING.get(name, (400, "bad_http"))
        assert (answer.status, answer.error["code"], goes_on) == (status, code, False), name
        assert (answer.headers["content-type"], answer.error["type"]) == (
            "application/json",
            "invalid_request_error",
        ), name
        assert set(answer.error) == {"message", "type", "param", "code"}, name
        assert not any(word in answer.error["message"] for word in ("garbage", "derived", "FROB", "\n")), name
        assert "x-request-id" in answer.headers, name
    assert grid.outcomes() == {}


async def test_a_bad_chunk_after_a_good_head(grid: Grid) -> None:
    async with raw_client(grid.front.port) as client:
        await client.send(chunked(GOOD[:7], end=b""))
        await until(lambda: handlers(grid), "the head is read")
        await client.send(b"zz\r\n")
        (answer,) = await client.answers()
    assert (answer.status, answer.error["code"]) == (400, "broken_body")
    assert grid.outcomes() == {("none", "refused"): 1}


@pytest.mark.parametrize("head", [("Content-Length", "500"), ("Transfer-Encoding", "chunked")])
async def test_a_body_that_the_client_itself_cuts_off(grid: Grid, head: tuple[str, str]) -> None:
    async with raw_client(grid.front.port) as client:
        await client.send(post(head, body=None) + b"20\r\n{")
        client.end()
        (answer,) = await client.answers()
    assert (answer.status, answer.error["code"]) == (400, "broken_body")
    assert grid.outcomes() == {("none", "refused"): 1}


async def test_what_is_refused(grid: Grid) -> None:
    for name, (sent, status, code) in REFUSED.items():
        answer, goes_on = await told(grid, sent)
        assert (answer.status, answer.error["code"]) == (status, code), name
        assert answer.error["type"] == "invalid_request_error", name
        assert set(answer.error) == {"message", "type", "param", "code"}, name
        assert len(answer.body) < 600, name
        assert ("allow" in answer.headers) == (status == 405), name
        assert goes_on or status == 413, name
    assert grid.outcomes() == {("none", "refused"): sum(to_us(sent) for sent, *_ in REFUSED.values())}


def to_us(sent: bytes) -> bool:
    """Whether it is a request to one of the doors that serve."""
    return sent.split()[1] == PATH.encode()


async def test_heads(grid: Grid) -> None:
    async with raw_client(grid.front.port) as client:
        for path, status in (("/health", 200), ("/v1/models", 200), ("/metrics", 200), (PATH, 405), ("/nowhere", 404)):
            await client.send(request_bytes("HEAD", path))
            answer = await client.answer(head=True)
            assert answer is not None
            assert answer.status == status
            assert int(answer.headers["content-length"]) > 0


async def test_many_requests_in_one_write_are_answered_in_order(grid: Grid) -> None:
    asks = [json.dumps(ASK | {"prompt": f"{i}", "echo": True, "max_tokens": i % 3}).encode() for i in range(12)]
    async with raw_client(grid.front.port) as client:
        await client.send(b"".join(post(body=ask) for ask in asks) + post(body=b"{") + HEALTH + post())
        for index in range(12):
            answer = await client.answer()
            assert answer is not None
            assert json.loads(answer.body)["choices"][0]["text"].startswith(f"{index}")
        assert [answer.status for answer in [await client.answer() for _ in range(3)] if answer] == [400, 200, 200]


async def test_a_stream_for_an_old_client_ends_with_the_connection(grid: Grid) -> None:
    async with raw_client(grid.front.port) as client:
        await client.send(post(version="1.0", body=LONG))
        (answer,) = await client.answers()
    assert "transfer-encoding" not in answer.headers
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_expectations(grid: Grid) -> None:
    async with raw_client(grid.front.port) as client:
        await client.send(post(("Expect", "100-continue"), ("Content-Length", str(len(GOOD))), body=None))
        going_on = await client.answer()
        await client.send(GOOD)
        answer = await client.answer()
        assert going_on is not None
        assert answer is not None
        assert (going_on.status, answer.status) == (100, 200)
        await client.send(post(("Expect", "cake")))
        refused = await client.answer()
        assert refused is not None
        assert refused.status == 417


async def test_a_body_in_drops_and_one_that_stops(grid: Grid) -> None:
    async with raw_client(grid.front.port) as client:
        head = post(("Content-Length", str(len(GOOD))), body=None)
        await client.send(*(bytes([byte]) for byte in head + GOOD))
        answer = await client.answer()
        assert answer is not None
        assert answer.status == 200
    async with raw_client(grid.front.port) as client:
        await client.send(post(("Content-Length", "50"), ("x-prfaas-deadline-ms", "60"), body=None) + GOOD[:20])
        answer = await client.answer()
        assert answer is not None
        assert (answer.status, answer.error["code"]) == (408, "body_timeout")
    assert grid.outcomes() == {("local", "ok"): 1, ("none", "refused"): 1}


async def test_heads_that_never_end(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, idle_s=0.1) as grid:
        for sent, statuses in (
            (b"", []),
            (b"POST", [408]),
            (post(body=None)[:-2], [408]),
            (post(), [200]),
            (HEALTH + b"POST /v1/comp", [200]),
        ):
            async with raw_client(grid.front.port) as client:
                await client.send(sent)
                answers = await client.answers()
                assert [answer.status for answer in answers] == statuses
                assert all(answer.error["code"] == "head_timeout" for answer in answers if answer.status == 408)
        async with raw_client(grid.front.port) as client:  # the second one, on a connection that was in use
            await client.send(HEALTH)
            assert await client.answer() is not None
            await client.send(b"POST /v1/comp")
            assert [answer.status for answer in await client.answers()] == [408]
        await grid.settled()


@pytest.mark.parametrize("cut", [1, 20, -1], ids=["in the head", "in the body", "at the end"])
@pytest.mark.parametrize("how", ["reset", "close"])
async def test_a_client_that_leaves(grid: Grid, cut: int, how: str) -> None:
    reached = asyncio.Event()

    async def wait(step: int) -> None:
        reached.set()
        await asyncio.Event().wait()

    grid.far_nodes[0].engine.before_chunk = wait
    sent = post(body=LONG)
    whole = cut < 0
    async with raw_client(grid.front.port) as client:
        await client.send(sent if whole else sent[:cut] if cut == 1 else sent[: -len(LONG) + cut])
        if whole:
            await reached.wait()
        elif cut > 1:
            await until(lambda: handlers(grid), "the head is read")
        if how == "reset":
            client.abort()
    await until(lambda: grid.gateway.in_flight == 0, "the gateway noticed")
    if cut == 1:
        assert grid.outcomes() == {}
    else:  # who only ends its side in mid-body is told so
        left = ("remote", "gone") if whole else ("none", "gone" if how == "reset" else "refused")
        await until(lambda: grid.outcomes() == {left: 1}, "it is booked")


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_does_not_read_is_cut_off_after_its_deadline(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Megabytes of log-probabilities, more than the sockets hold. Its time ends long before that of who computes."""
    monkeypatch.setattr(front, "LATE_NS", -25 * 10**9)
    roomy = replace(LIMITS, max_model_len=9000, max_sequences=8, kv_blocks=9000)
    decoders = [await rig.node("home-d", "decode", limits=roomy)]
    late = 60 * 10**9
    async with two_clusters(rig, far=[], home=[], decoders=decoders, whole_limit=9000, deadline_ns=late) as grid:
        ask = {"prompt": "\x01" * 8000, "n": 8, "logprobs": 5, "echo": True, "stream": stream}
        async with raw_client(grid.front.port, seconds=60) as client:
            with client.not_reading():
                await client.send(post(("x-prfaas-deadline-ms", "30000"), body=json.dumps(ASK | ask).encode()))
                await until(lambda: grid.gateway.in_flight == 1, "begun")
                async with asyncio.timeout(50):
                    while grid.gateway.in_flight or handlers(grid):  # noqa: ASYNC110
                        await asyncio.sleep(0.01)
        await grid.settled()


def handlers(grid: Grid) -> bool:
    """Whether the gateway's door still serves somebody."""
    assert grid.front._runner.server is not None
    return any(connection._current_request for connection in grid.front._runner.server.connections)
