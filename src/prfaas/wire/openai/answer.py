"""OpenAI's answers: whole bodies, stream chunks and errors, as bytes.

It knows the shapes of both endpoints; it does not know where text comes from. One `AnswerWriter` is one answer: all its
chunks have the same id and time.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from prfaas.core.errors import RequestError
from prfaas.wire.sse import DONE, event_bytes

Kind = Literal["completion", "chat"]


class PromptDetails(msgspec.Struct, frozen=True):
    """`usage.prompt_tokens_details`: tokens whose KV was there already where the prompt was prefilled."""

    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    """Tokens in and out."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails = PromptDetails()


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> Usage:
    """Usage with its sum."""
    total = prompt_tokens + completion_tokens
    return Usage(prompt_tokens, completion_tokens, total, PromptDetails(cached_tokens))


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chat chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct, frozen=True):
    """The answer's message."""

    content: str
    role: str = "assistant"
    refusal: None = None


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The one choice: `text` (completion), `message` (chat) or `delta` (chat chunk)."""

    index: int = 0
    text: str | UnsetType = UNSET
    message: ChatMessage | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    logprobs: None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A body or a chunk."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET


class ModelCard(msgspec.Struct, frozen=True):
    """One model that is served."""

    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "prfaas"


class ModelList(msgspec.Struct, frozen=True):
    """`GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"


class AnswerWriter:
    """Writes one answer, whole or in chunks. `created_s`: Unix time."""

    __slots__ = ("_created_s", "_id", "_include_usage", "_kind", "_model")

    def __init__(self, kind: Kind, request_id: str, model: str, created_s: int, include_usage: bool = False) -> None:
        self._kind, self._model, self._created_s, self._include_usage = kind, model, created_s, include_usage
        self._id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}"

    def whole(self, text: str, finish: str, used: Usage, transfer: dict[str, Any] | None = None) -> bytes:
        """The answer in one body, `transfer` being its `kv_transfer_params`."""
        if self._kind == "chat":
            choice = Choice(message=ChatMessage(text), finish_reason=finish)
        else:
            choice = Choice(text=text, finish_reason=finish)
        name = "chat.completion" if self._kind == "chat" else "text_completion"
        return msgspec.json.encode(self._answer(name, [choice], used, transfer))

    def first(self) -> bytes:
        """What a stream begins with: the role (chat), or nothing."""
        return self._chunk(Choice(delta=Delta(role="assistant", content=""))) if self._kind == "chat" else b""

    def text(self, text: str) -> bytes:
        """A chunk that adds `text`."""
        return self._chunk(Choice(delta=Delta(content=text)) if self._kind == "chat" else Choice(text=text))

    def last(self, finish: str, used: Usage) -> bytes:
        """What a stream ends with: why, the usage if it was asked for, and the end mark."""
        choice = Choice(delta=Delta()) if self._kind == "chat" else Choice(text="")
        end = self._chunk(msgspec.structs.replace(choice, finish_reason=finish))
        if self._include_usage:
            end += event_bytes(msgspec.json.encode(self._answer(self._chunk_name, [], used)))
        return end + DONE

    @property
    def _chunk_name(self) -> str:
        return "chat.completion.chunk" if self._kind == "chat" else "text_completion"

    def _chunk(self, choice: Choice) -> bytes:
        used = None if self._include_usage else UNSET
        return event_bytes(msgspec.json.encode(self._answer(self._chunk_name, [choice], used)))

    def _answer(
        self, name: str, choices: list[Choice], used: Usage | UnsetType | None, transfer: dict[str, Any] | None = None
    ) -> Answer:
        return Answer(
            id=self._id,
            object=name,
            created=self._created_s,
            model=self._model,
            choices=choices,
            usage=used,
            kv_transfer_params=UNSET if transfer is None else transfer,
        )


class ErrorDetail(msgspec.Struct, frozen=True):
    """OpenAI's error: `param` is the field at fault, `code` one word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct, frozen=True):
    """What every error answers."""

    error: ErrorDetail


def error_detail(error: RequestError) -> ErrorDetail:
    """`error` as OpenAI shows it."""
    return ErrorDetail(error.message, error.kind, error.param, error.code)


def error_body(detail: ErrorDetail) -> bytes:
    """The JSON body of an error answer."""
    return msgspec.json.encode(ErrorBody(detail))


def error_event(detail: ErrorDetail) -> bytes:
    """A stream's error: the last event of a stream that has no end mark."""
    return event_bytes(error_body(detail), "error")


def parse_error(body: bytes) -> ErrorDetail | None:
    """The error in a peer's answer, or None when `body` is no such thing."""
    try:
        return msgspec.json.decode(body, type=ErrorBody).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
