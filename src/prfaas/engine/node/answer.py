"""An engine's tokens as an answer: text in pieces, why it ended, what it used.

It knows tokens, text and OpenAI's answers; it does not know where KV came from or what else waits.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from aiohttp import web

from prfaas.core.errors import InvariantError, RequestError
from prfaas.engine.base import Token
from prfaas.engine.node.deadline import within
from prfaas.model.detok import TextStream
from prfaas.runtime.http import event_stream, json_bytes_reply
from prfaas.wire.openai import AnswerWriter, ErrorDetail, Usage, error_detail, error_event, usage


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds. `finish` on the last one: stop or length."""

    text: str
    finish: str | None = None


class Pieces:
    """The answer to one prompt, token by token, each within the deadline. Closing the tokens is the caller's."""

    def __init__(
        self, tokens: AsyncGenerator[Token, None], stream: TextStream, prompt_tokens: int, deadline_ns: int
    ) -> None:
        self._tokens, self._stream = tokens, stream
        self.deadline_ns = deadline_ns
        self._prompt_tokens = prompt_tokens
        self.generated = 0
        """Tokens so far, an end mark included."""

    @property
    def used(self) -> Usage:
        """Tokens in and out so far."""
        return usage(self._prompt_tokens, self.generated)

    async def next(self) -> Piece:
        """The next piece. Not after the last one. Raises RequestError, 504, and whatever the engine raises."""
        try:
            async with within(self.deadline_ns):
                token = await anext(self._tokens)
        except StopAsyncIteration:
            raise InvariantError("the engine's answer ended without a reason") from None
        self.generated += 1
        text = "" if token.finish == "stop" else self._stream.push(token.id)
        if self._stream.stopped:
            return Piece(text, "stop")
        if token.finish is None:
            return Piece(text)
        text += self._stream.finish()
        return Piece(text, "stop" if self._stream.stopped else token.finish)


async def reply_whole(first: Piece, pieces: Pieces, writer: AnswerWriter) -> tuple[web.Response, str]:
    """The answer in one body, and why it ended."""
    texts, piece = [first.text], first
    while piece.finish is None:
        piece = await pieces.next()
        texts.append(piece.text)
    return json_bytes_reply(writer.whole("".join(texts), piece.finish, pieces.used)), piece.finish


async def reply_stream(
    request: web.Request, first: Piece, pieces: Pieces, writer: AnswerWriter
) -> tuple[web.StreamResponse, str]:
    """The answer as events, and why it ended.

    Raises StreamFailed when the engine fails: the error is the last event then, and no end mark follows. Raises
    RequestError, 504, when the client does not read: there is nobody to tell, the connection is to be cut.
    """
    response = event_stream()
    await response.prepare(request)

    async def write(data: bytes) -> None:
        async with within(pieces.deadline_ns):
            await response.write(data)

    opening, piece = writer.first(), first
    while piece.finish is None:
        chunk = opening + writer.text(piece.text) if piece.text else opening
        if chunk:
            await write(chunk)
            opening = b""
        try:
            piece = await pieces.next()
        except Exception as error:
            await response.write(error_event(_told(error)))
            await response.write_eof()
            raise StreamFailed(response) from error
    text = writer.text(piece.text) if piece.text else b""
    await write(opening + text + writer.last(piece.finish, pieces.used))
    await response.write_eof()
    return response, piece.finish


class StreamFailed(Exception):
    """A stream ended by an error event; `response` is what was sent. Its cause is the failure."""

    def __init__(self, response: web.StreamResponse) -> None:
        super().__init__("the stream ended by an error")
        self.response = response


def _told(error: Exception) -> ErrorDetail:
    if isinstance(error, RequestError):
        return error_detail(error)
    return ErrorDetail("internal error", "server_error", code="internal_error")
