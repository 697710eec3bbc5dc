"""The pieces of an answer as HTTP: one body, or events as they come.

It knows pieces and OpenAI's answers; it does not know engines, where KV came from or what else waits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.engine.node.choices import Choices, Piece
from prfaas.engine.node.deadline import within
from prfaas.model.text import LARGE, Text
from prfaas.runtime.http import event_stream, json_bytes_reply
from prfaas.wire.openai import AnswerWriter, ErrorDetail, Finished, Scored, error_detail, error_event

MANY_SCORED = 500
"""Log-probabilities of so many tokens are written off the event loop."""


class Replies:
    """Sends the answers of one request: `writer` knows their shape. `deadline_ns` bounds what a slow client may take.

    Both ways return the response, and why each choice ended.
    """

    def __init__(self, choices: Choices, writer: AnswerWriter, text: Text, deadline_ns: int) -> None:
        self._choices, self._writer, self._text, self._deadline_ns = choices, writer, text, deadline_ns

    async def whole(self, first: Piece) -> tuple[web.Response, list[str]]:
        """The answer in one body."""
        texts: dict[int, list[str]] = {}
        scored: dict[int, list[Scored] | None] = {}
        finish: dict[int, str] = {}
        piece = first
        while True:
            texts.setdefault(piece.index, []).append(piece.text)
            known = scored.setdefault(piece.index, None if piece.scored is None else [])
            if known is not None:
                known += piece.scored or ()
            if piece.finish is not None:
                finish[piece.index] = piece.finish
            if self._choices.over:
                break
            piece = await self._choices.next()
        made = [Finished("".join(texts[index]), finish[index], scored[index]) for index in sorted(texts)]
        many = sum(len(one.scored or ()) for one in made)
        body = await self._written(many, lambda: self._writer.whole(made, self._choices.used))
        return json_bytes_reply(body), [one.finish for one in made]

    async def stream(self, request: web.Request, first: Piece) -> tuple[web.StreamResponse, list[str]]:
        """The answer as events.

        Raises StreamFailed when the engine fails: the error is the last event then, and no end mark follows. Raises
        RequestError, 504, when the client does not read: there is nobody to tell, the connection is to be cut.
        """
        response = event_stream()
        await response.prepare(request)
        opened: set[int] = set()
        finish: dict[int, str] = {}
        piece = first
        while True:
            opening = b"" if piece.index in opened else self._writer.first(piece.index)
            data = await self._written(len(piece.scored or ()), partial(self._events, piece))
            if piece.finish is not None:
                finish[piece.index] = piece.finish
            if self._choices.over:
                data += self._writer.end(self._choices.used)
            opened.add(piece.index)
            if opening or data:
                async with within(self._deadline_ns):
                    await response.write(opening + data)
            if self._choices.over:
                break
            try:
                piece = await self._choices.next()
            except Exception as error:
                await response.write(error_event(_told(error)))
                await response.write_eof()
                raise StreamFailed(response) from error
        await response.write_eof()
        return response, [finish[index] for index in sorted(finish)]

    def _events(self, piece: Piece) -> bytes:
        data = self._writer.text(piece.text, piece.index, piece.scored) if piece.text or piece.scored else b""
        return data if piece.finish is None else data + self._writer.last(piece.finish, piece.index)

    async def _written(self, scored: int, write: Callable[[], bytes]) -> bytes:
        return write() if scored < MANY_SCORED else await self._text.off_loop(write, LARGE)


class StreamFailed(Exception):
    """A stream ended by an error event; `response` is what was sent. Its cause is the failure."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__("the stream ended by an error")
        self.response = response


def _told(error: Exception) -> ErrorDetail:
    if isinstance(error, RequestError):
        return error_detail(error)
    return ErrorDetail("internal error", "server_error", code="internal_error")
