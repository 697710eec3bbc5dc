"""What is wrong with a connection before there is a request, or around it: told in OpenAI's error body too.

It knows aiohttp's protocol class, whose own errors are plain text; it does not know endpoints or applications. Where a
status tells more than 400, it is used. Heads that do not end are told 408; a body that the client itself cut off, 400.
"""

from __future__ import annotations

import re
import uuid
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import HttpVersion10
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import RequestHandler, _ErrInfo
from aiohttp.web_request import BaseRequest

from prfaas.core.errors import RequestError
from prfaas.wire.openai import error_body, error_detail

log = structlog.get_logger(__name__)

MAX_URL_BYTES = 8190
MAX_HEADER_BYTES = 8192
"""Of one header, name and value. Not the bound of the URL: the library tells the two apart by their bounds only."""
MAX_HEADERS = 128
BOUNDS = {"max_line_size": MAX_URL_BYTES, "max_field_size": MAX_HEADER_BYTES, "max_headers": MAX_HEADERS}
SAID_CHARS = 200
_QUOTED = re.compile(r":\s*b['\"].*", re.DOTALL)
"""What the library quotes of the client's bytes: they may be a secret, and are logged here."""


class Connection(RequestHandler):
    """One client's connection."""

    __slots__ = ("_body", "_head_begun")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_begun = False
        self._body: StreamReader | None = None
        """Of the latest request, until it is answered."""

    def data_received(self, data: bytes) -> None:
        """Remembers whether a request's head has begun and not ended, and the body of the latest."""
        waiting, before, body = self._waits(), self._request_count, self._body
        super().data_received(data)
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo) and self._cut(body, "it is no HTTP"):
            self._messages.pop()  # who reads the body tells of it
            return
        if self._request_count != before:
            self._head_begun = False
            self._body = self._messages[-1][1] if self._messages else None
        elif waiting and data:
            self._head_begun = True

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that ends in mid-body may still read what is wrong with that. True: our side stays open."""
        return self._cut(self._body, "it was cut off before its end") or None

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """The answer to what the library itself found wrong; the connection ends with it."""
        if not isinstance(exc, HttpProcessingError):  # a bug: nothing of ours lets it come so far
            log.error("unexpected error", detail=repr(exc), exc_info=exc)
            error = RequestError("internal error", status=500, kind="server_error", code="internal_error")
        else:
            error = _told(exc, status)
            log.debug("not HTTP", detail=error.message)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        reply = _reply(error)
        reply.force_close()
        return reply

    async def _handle_request(
        self, request: BaseRequest, start_time: float | None, request_handler: Any
    ) -> tuple[web.StreamResponse, bool]:
        if request._version < HttpVersion10:  # a line without a version: the library would serve it
            request._version = HttpVersion10
            old = BadHttpMessage("the request line has no version")
            request_handler = self._make_error_handler(_ErrInfo(400, old, old.message))
        try:
            return await super()._handle_request(request, start_time, request_handler)
        finally:
            if request.content is self._body:
                self._body = None

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """What the library refuses of a request that is HTTP (such as what it expects) has our body as well."""
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp = _reply(RequestError(resp.text or resp.reason, status=resp.status, code=code_of(resp.status)))
        return await super().finish_response(request, resp, start_time)

    def _process_keepalive(self) -> None:
        # The time of a connection without a whole head is over.
        due = self._loop.time() >= self._next_keepalive_close_time and self._keepalive and not self._force_close
        if due and self._head_begun and self._waits():
            self._head_begun, self._keepalive_handle = False, None
            late = BadHttpMessage(f"no whole request head within {self.keepalive_timeout:g} s")
            self._messages.append((_ErrInfo(408, late, late.message), EMPTY_PAYLOAD))
            assert self._waiter is not None
            self._waiter.set_result(None)
            return
        super()._process_keepalive()

    def _cut(self, body: StreamReader | None, why: str) -> bool:
        """Whether `body` is still awaited. Then no more of it comes, and the connection ends once that is answered."""
        if body is None or body.is_eof() or body.exception() is not None:
            return False
        body.set_exception(web.RequestPayloadError(why))
        body.feed_eof()
        self.close()
        return True

    def _waits(self) -> bool:
        """Whether no request is in hand."""
        return self._waiter is not None and not self._waiter.done()


class Server(web.Server):
    """Makes such connections."""

    def __call__(self) -> RequestHandler:
        """One connection."""
        return Connection(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """Serves an application by such a server."""

    async def _make_server(self) -> web.Server:
        plain = await super()._make_server()
        return Server(
            plain.request_handler,
            request_factory=plain.request_factory,
            handler_cancellation=plain.handler_cancellation,
            loop=plain._loop,
            **plain._kwargs | BOUNDS,
        )


CODES = {404: "not_found", 405: "method_not_allowed", 417: "expectation_failed"}


def code_of(status: int) -> str:
    """The code word of an error that HTTP itself has a status for."""
    return CODES.get(status, f"http_{status}")


def _told(error: HttpProcessingError, status: int) -> RequestError:
    said = " ".join(_QUOTED.sub("", str(error.message)).split())[:SAID_CHARS]
    if status == 408:
        return RequestError(said, status=408, code="head_timeout")
    if isinstance(error, LineTooLong):
        if error.args[1] == MAX_URL_BYTES:
            return RequestError(f"the URL is over {MAX_URL_BYTES} bytes", status=414, code="url_too_long")
        return RequestError(f"a header is over {MAX_HEADER_BYTES} bytes", status=431, code="header_too_large")
    if said.startswith("Too many headers"):
        return RequestError(f"there are over {MAX_HEADERS} headers", status=431, code="header_too_large")
    return RequestError(f"this is no HTTP request: {said}", code="bad_http")


def _reply(error: RequestError) -> web.Response:
    return web.Response(
        body=error_body(error_detail(error)),
        status=error.status,
        content_type="application/json",
        headers={"x-request-id": uuid.uuid4().hex},
    )
