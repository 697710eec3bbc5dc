"""HTTP calls between our programs: one session, JSON both ways, or a stream of JSON lines.

It knows aiohttp and the error bodies; it does not know any endpoint. Whatever goes wrong is a PeerFailure or
ProtocolError: callers handle one tree. A peer that answered with an error is `Refused`, with its status and code.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator
from typing import Any, TypeVar

import aiohttp
import msgspec

from prfaas.core.errors import PeerFailure, ProtocolError
from prfaas.wire.openai import parse_error

T = TypeVar("T")

CONNECT_S = 5.0
IDLE_S = 15.0
"""Idle connections are dropped long before a server of ours drops them, so that none is used as it closes."""
MAX_ERROR_BYTES = 64 * 1024
MAX_REPLY_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 20
LARGE_BYTES = 256 << 10


class Refused(PeerFailure):
    """The peer answered with an error: HTTP `status`, its `code` and message, and when to come back if it said so."""

    def __init__(self, status: int, code: str, detail: str, retry_after_s: int | None = None) -> None:
        super().__init__(code, detail)
        self.status = status
        self.retry_after_s = retry_after_s


def make_session(secret: str | None = None, *, connect_s: float = CONNECT_S) -> aiohttp.ClientSession:
    """A session for calls to our programs, showing `secret`. No limit of connections, no time-out but `connect_s`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=IDLE_S, ttl_dns_cache=10),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_s),
        headers={"Authorization": f"Bearer {secret}"} if secret else None,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


async def refusal(response: aiohttp.ClientResponse) -> Refused:
    """What an answer with an error status says."""
    body = await read_bounded(response, MAX_ERROR_BYTES)
    error = parse_error(body)
    after = response.headers.get("Retry-After", "")
    retry_after_s = int(after) if after.isascii() and after.isdigit() else None
    if error is None:
        said = body[:200].decode(errors="replace")
        return Refused(response.status, f"http_{response.status}", said or response.reason or "", retry_after_s)
    return Refused(response.status, error.code or f"http_{response.status}", error.message, retry_after_s)


async def read_bounded(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    """The body. Raises ProtocolError, "reply_too_large"."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > max_bytes:
            raise ProtocolError("reply_too_large", f"{response.url.path} answered with over {max_bytes} bytes")
    return bytes(body)


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    body: msgspec.Struct | None,
    reply: type[T],
    *,
    timeout_s: float | None = None,
) -> T:
    """One call, its JSON answer as `reply`. Raises Refused, PeerFailure ("unreachable", "timeout") or ProtocolError."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.request(method, url, data=_encoded(body), headers=_headers(body)) as response,
        ):
            if response.status >= 400:
                raise await refusal(response)
            raw = await read_bounded(response, MAX_REPLY_BYTES)
    except TimeoutError:
        raise PeerFailure("timeout", f"{method} {url} took too long") from None
    except (aiohttp.ClientError, OSError) as error:
        raise PeerFailure("unreachable", f"{method} {url}: {error or type(error).__name__}") from None
    return _decoded(raw or b"{}", reply, url)


async def fetch(
    session: aiohttp.ClientSession, url: str, *, timeout_s: float | None = None, max_bytes: int = MAX_REPLY_BYTES
) -> bytes:
    """The body of a GET, whatever it is. Raises as `call` does."""
    try:
        async with asyncio.timeout(timeout_s), session.get(url, allow_redirects=False) as response:
            if response.status != 200:
                raise await refusal(response)
            return await read_bounded(response, max_bytes)
    except TimeoutError:
        raise PeerFailure("timeout", f"GET {url} took too long") from None
    except (aiohttp.ClientError, OSError) as error:
        raise PeerFailure("unreachable", f"GET {url}: {error or type(error).__name__}") from None


async def post_lines(
    session: aiohttp.ClientSession, url: str, body: msgspec.Struct, line: type[T], *, max_line: int = MAX_LINE_BYTES
) -> AsyncGenerator[T, None]:
    """POST, then the answer's lines as they come, each a `line`. Close the generator to hang up.

    Raises Refused, PeerFailure ("unreachable", or "cut_off" when the stream breaks or ends within a line) or
    ProtocolError ("line_too_long", "bad_reply").
    """
    begun = False
    try:
        async with session.post(url, data=_encoded(body), headers=_headers(body)) as response:
            if response.status >= 400:
                raise await refusal(response)
            begun, held = True, bytearray()
            async for chunk in response.content.iter_any():
                *lines, rest = (held + chunk).split(b"\n")
                held = rest
                if max(len(held), *map(len, lines), 0) > max_line:
                    raise ProtocolError("line_too_long", f"{url} sent a line of over {max_line} bytes")
                for raw in lines:
                    if raw.strip():
                        yield _decoded(raw, line, url)
            if held.strip():
                raise PeerFailure("cut_off", f"{url}: the answer ended within a line")
    except TimeoutError:
        raise PeerFailure("unreachable", f"POST {url}: no connection in time") from None
    except (aiohttp.ClientError, OSError) as error:
        code = "cut_off" if begun else "unreachable"
        raise PeerFailure(code, f"POST {url}: {error or type(error).__name__}") from None


def line_bytes(value: msgspec.Struct) -> bytes:
    """`value` as one line of such a stream."""
    return msgspec.json.encode(value) + b"\n"


def sendable(body: bytes) -> bytes | io.BytesIO:
    """`body` for aiohttp, which writes a large one piece by piece only if it is a file: else the loop would stand
    still."""
    return body if len(body) < LARGE_BYTES else io.BytesIO(body)


def _encoded(body: msgspec.Struct | None) -> bytes | io.BytesIO | None:
    return None if body is None else sendable(msgspec.json.encode(body))


def _headers(body: msgspec.Struct | None) -> dict[str, str] | None:
    return None if body is None else {"Content-Type": "application/json"}


def _decoded(raw: bytes | bytearray, kind: type[T], url: str) -> T:
    try:
        value: Any = msgspec.json.decode(raw, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("bad_reply", f"{url}: {error}") from None
    return value  # type: ignore[no-any-return]
