"""When a node's stream has begun: what it answers at once is not shown before its first event."""

from __future__ import annotations

import aiohttp
import pytest
from aiohttp import web

from prfaas.core.errors import PeerFailure, ProtocolError
from prfaas.gateway.begun import first_event
from prfaas.runtime.client import Refused
from prfaas.runtime.http import serve


async def begun(*pieces: bytes) -> tuple[bytes, bytes]:
    """What `first_event` makes of a stream that comes in these pieces, and the rest of it."""

    async def answer(request: web.Request) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        for piece in pieces:
            await out.write(piece)
        return out

    app = web.Application()
    app.router.add_get("/", answer)
    listening = await serve(app, "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as session, session.get(listening.url) as response:
            return await first_event(response), await response.read()
    finally:
        await listening.close()


async def test_all_that_was_read_is_kept() -> None:
    pieces = (b": a comment\n\n", b'data: {"choices', b'": []}\n', b"\nda", b"ta: [DONE]\n\n")
    first, rest = await begun(*pieces)
    assert first.startswith(b': a comment\n\ndata: {"choices": []}\n\n')
    assert first + rest == b"".join(pieces)


@pytest.mark.parametrize(
    ("piece", "code", "words"),
    [
        (
            b'data: {"error": {"message": "no KV", "type": "x", "param": null, "code": 500}}\n\n',
            "engine_failed",
            "no KV",
        ),
        (b'data: {"error": {"message": "no KV", "type": "x", "code": "kv_lost"}}\n\n', "kv_lost", "no KV"),
    ],
)
async def test_an_error_is_an_answer_that_never_began(piece: bytes, code: str, words: str) -> None:
    with pytest.raises(Refused, match=words) as raised:
        await begun(piece)
    assert (raised.value.status, raised.value.code) == (500, code)


@pytest.mark.parametrize("pieces", [(), (b": nothing\n\n",), (b'data: {"choices": []}',)])
async def test_a_stream_without_an_event(pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(PeerFailure, match="before its first event"):
        await begun(*pieces)


async def test_what_is_no_stream() -> None:
    with pytest.raises(ProtocolError):
        await begun(b"data: \xff\xfe\n\n")
