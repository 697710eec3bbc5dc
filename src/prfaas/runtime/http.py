"""HTTP servers: one way to read a body, to refuse, to name a request and to listen, for all our programs.

It knows aiohttp and OpenAI's error bodies; it does not know any endpoint. Every error leaves as one body of OpenAI's
shape; an unexpected one is logged with its stack and tells the client nothing but its request id.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog
from aiohttp import web
from aiohttp.http import HttpVersion11

from prfaas.core.errors import RemoteError, RequestError
from prfaas.runtime.connection import Runner, code_of
from prfaas.wire.openai import error_body, error_detail

T = TypeVar("T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = structlog.get_logger(__name__)

JSON = "application/json"
IDLE_S = 75.0
"""A connection without a whole request head for so long is closed: idle ones, and heads that come drop by drop."""
GRACE_S = 3.0
BODY_S = 60.0
LINGER_S = 2.0
"""So long is taken in what a refused client still sends, that it may read why, before the connection is closed."""
NOTHING: Mapping[str, Sequence[str]] = {}
OPEN_PATHS = frozenset({"/health", "/metrics"})

_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
_PREPARED: web.RequestKey[bool] = web.RequestKey("prepared", bool)
_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")


def make_app(
    *,
    max_body_bytes: int,
    keys: Sequence[str] = (),
    open_paths: frozenset[str] = OPEN_PATHS,
    inside: Mapping[str, Sequence[str]] = NOTHING,
    around: Any = None,
) -> web.Application:
    """An application with error bodies and request ids; if there are `keys`, all but `open_paths` demand one.

    `inside`: paths that begin so demand one of these keys instead, and are refused when there are none.
    `around`: a middleware that sees every answer as it is sent.
    """
    middlewares = [_answer_errors, _bearer(keys, open_paths, inside)]
    if around is not None:
        middlewares.insert(0, around)
    app = web.Application(client_max_size=max_body_bytes, middlewares=middlewares)
    app.on_response_prepare.append(_on_prepare)
    return app


def request_id(request: web.Request) -> str:
    """The request's name: the client's `x-request-id` if it is a sane one, else ours. It is in the answer's headers."""
    if _ID not in request:
        said = request.headers.get("x-request-id", "")
        request[_ID] = said if _SANE_ID.match(said) else uuid.uuid4().hex
    return request[_ID]


async def expect_later(request: web.Request) -> None:
    """A route's expect_handler: says to go on to who asks. Other wishes are refused like all else, by middlewares."""
    if _expects(request) == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # this was no part of the answer


def _expects(request: web.Request) -> str:
    return request.headers.get("Expect", "").lower() if request.version == HttpVersion11 else ""


async def read_body(request: web.Request, timeout_s: float = BODY_S) -> bytes:
    """The whole body, as it came.

    Raises RequestError: 413 over the application's bound, 408 when slow, 400 when broken, 415 when it is compressed
    (nothing here is: what a body unfolds to would be known too late).
    """
    coding = ", ".join(request.headers.getall("Content-Encoding", ()))
    if coding.strip().lower() not in ("", "identity"):
        said = f"Content-Encoding {coding[:40]!r}; expected a body that is not compressed"
        raise RequestError(said, status=415, code="unsupported_encoding")
    if (request.content_length or 0) > request.client_max_size:
        raise _too_large(request)
    try:
        async with asyncio.timeout(timeout_s):
            return await request.read()
    except TimeoutError:
        raise RequestError(f"the body took longer than {timeout_s:g} s", status=408, code="body_timeout") from None
    except web.HTTPRequestEntityTooLarge:
        raise _too_large(request) from None
    except web.RequestPayloadError as error:
        raise RequestError(f"the body is broken: {error}", code="broken_body") from None


def _too_large(request: web.Request) -> RequestError:
    return RequestError(f"the body is over {request.client_max_size} bytes", status=413, code="body_too_large")


async def read_json(request: web.Request, kind: type[T]) -> T:
    """The body as `kind`. Raises RequestError, 400, that names the path at fault."""
    body = await read_body(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RequestError(f"the body is not as expected: {error}", code="invalid_json") from None


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """`value` (a msgspec struct or plain data) as a JSON answer."""
    return web.Response(body=msgspec.json.encode(value), status=status, content_type=JSON, headers=headers)


def json_bytes_reply(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A JSON answer that was encoded before."""
    return web.Response(body=body, status=status, content_type=JSON, headers=headers)


async def send_within(request: web.Request, response: web.Response, deadline_ns: int) -> web.Response:
    """Sends all of `response`; a client that has not taken it by `deadline_ns` (the loop's clock) is cut off."""
    try:
        async with asyncio.timeout_at(deadline_ns / 1e9):
            await response.prepare(request)
            await response.write_eof()
    except TimeoutError:
        raise ConnectionAbortedError("the client does not read") from None
    return response


def error_reply(error: RequestError, allow: str | None = None) -> web.Response:
    """`error` as OpenAI reports it, with Retry-After where it has one; `allow` names the methods that exist."""
    headers = {} if allow is None else {"Allow": allow}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return json_bytes_reply(error_body(error_detail(error)), error.status, headers)


def event_stream(headers: dict[str, str] | None = None) -> web.StreamResponse:
    """The beginning of a stream of server-sent events; the caller prepares it."""
    fixed = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return web.StreamResponse(headers=fixed | (headers or {}))


class Listening:
    """A server that accepts connections at `host`, `port`, until it is closed."""

    def __init__(self, runner: web.AppRunner, host: str, port: int) -> None:
        self._runner = runner
        self.host, self.port = host, port

    @property
    def url(self) -> str:
        """`http://host:port`."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    async def close(self) -> None:
        """Stop listening, give running requests the grace time, cancel what is left."""
        await self._runner.cleanup()


async def serve(
    app: web.Application, host: str, port: int, *, idle_s: float = IDLE_S, grace_s: float = GRACE_S
) -> Listening:
    """Listen (port 0: any). A handler is cancelled when its client leaves. Raises OSError when it cannot listen."""
    runner = Runner(
        app,
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=idle_s,
        shutdown_timeout=grace_s,
        auto_decompress=False,
        lingering_time=LINGER_S,
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port, backlog=1024)
        await site.start()
    except BaseException:
        await runner.cleanup()
        raise
    bound: Any = runner.addresses[0]
    return Listening(runner, bound[0], bound[1])


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    name, allow = request_id(request), None
    with structlog.contextvars.bound_contextvars(request_id=name):
        try:
            if _expects(request) not in ("", "100-continue"):
                raise RequestError("Expect: only 100-continue is known", status=417, code=code_of(417))
            return await handler(request)
        except RequestError as error:
            known = error
        except RemoteError as error:
            known = RequestError(f"a peer failed: {error}", status=502, kind="server_error", code=error.code)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            said = f"{request.method} {request.path[:200]}: {error.reason}"
            known = RequestError(said, status=error.status, code=code_of(error.status))
            allow = error.headers.get("Allow")
        except ConnectionError:
            return _cut(request)
        except Exception:
            log.exception("unexpected error", path=request.path)
            known = RequestError(
                f"internal error; request {name}", status=500, kind="server_error", code="internal_error"
            )
        if _PREPARED in request:  # too late for a body: a cut stream is what tells the client
            log.warning("answer cut off", path=request.path, code=known.code, detail=known.message)
            return _cut(request)
        return error_reply(known, allow)


def _cut(request: web.Request) -> web.Response:
    """End the connection; what is returned can no longer be sent."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def _bearer(keys: Sequence[str], open_paths: frozenset[str], inside: Mapping[str, Sequence[str]]) -> Any:
    everywhere = [key.encode() for key in keys]
    within = {prefix: [key.encode() for key in others] for prefix, others in inside.items()}

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        found = [others for prefix, others in within.items() if request.path.startswith(prefix)]
        expected = found[0] if found else everywhere
        if found or (expected and request.path not in open_paths):
            scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
            given = shown.strip().encode(errors="replace")
            matches = [hmac.compare_digest(given, key) for key in expected]  # all of them: time tells nothing
            if scheme.lower() != "bearer" or not any(matches):
                raise RequestError("the Authorization header has no valid key", status=401, code="invalid_api_key")
        return await handler(request)

    return check


async def _on_prepare(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.setdefault("x-request-id", request_id(request))
    request[_PREPARED] = True
