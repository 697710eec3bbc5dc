"""OpenAI's answers: whole bodies, stream chunks and errors, as bytes.

It knows the shapes of both endpoints; it does not know where text comes from. One `AnswerWriter` is one answer: all its
chunks have the same id and time. An answer has one choice or several, told apart by their index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from prfaas.core.errors import RequestError
from prfaas.wire.openai.logprobs import ChatLogprobs, CompletionLogprobs, Scored, chat_logprobs, completion_logprobs
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
    """One choice: `text` (completion), `message` (chat) or `delta` (chat chunk)."""

    index: int = 0
    text: str | UnsetType = UNSET
    message: ChatMessage | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    logprobs: CompletionLogprobs | ChatLogprobs | None = None
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


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice of a whole answer. `scored`: its tokens' log-probabilities, None when nobody asked for them."""

    text: str
    finish: str
    scored: Sequence[Scored] | None = None


class AnswerWriter:
    """Writes one answer, whole or in chunks. `created_s`: Unix time."""

    __slots__ = ("_created_s", "_id", "_include_usage", "_kind", "_model")

    def __init__(self, kind: Kind, request_id: str, model: str, created_s: int, include_usage: bool = False) -> None:
        self._kind, self._model, self._created_s, self._include_usage = kind, model, created_s, include_usage
        self._id = f"{'chatcmpl' if kind == 'chat' else 'cmpl'}-{request_id}"

    def whole(self, choices: Sequence[Finished], used: Usage, transfer: dict[str, Any] | None = None) -> bytes:
        """The answer in one body, `transfer` being its `kv_transfer_params`."""
        made = [
            Choice(
                index=index,
                message=ChatMessage(one.text) if self._kind == "chat" else UNSET,
                text=UNSET if self._kind == "chat" else one.text,
                logprobs=self._logprobs(one.scored),
                finish_reason=one.finish,
            )
            for index, one in enumerate(choices)
        ]
        name = "chat.completion" if self._kind == "chat" else "text_completion"
        return msgspec.json.encode(self._answer(name, made, used, transfer))

    def first(self, index: int = 0) -> bytes:
        """What a choice begins with: the role (chat), or nothing."""
        if self._kind != "chat":
            return b""
        return self._chunk(Choice(index=index, delta=Delta(role="assistant", content="")))

    def text(self, text: str, index: int = 0, scored: Sequence[Scored] | None = None) -> bytes:
        """A chunk that adds `text`."""
        return self._chunk(self._piece(index, text, scored))

    def last(self, finish: str, index: int = 0) -> bytes:
        """What a choice ends with: why."""
        choice = Choice(index=index, delta=Delta()) if self._kind == "chat" else Choice(index=index, text="")
        return self._chunk(msgspec.structs.replace(choice, finish_reason=finish))

    def end(self, used: Usage) -> bytes:
        """What a stream ends with: the usage if it was asked for, and the end mark."""
        if not self._include_usage:
            return DONE
        return event_bytes(msgspec.json.encode(self._answer(self._chunk_name, [], used))) + DONE

    def _piece(self, index: int, text: str, scored: Sequence[Scored] | None) -> Choice:
        logprobs = self._logprobs(scored)
        if self._kind == "chat":
            return Choice(index=index, delta=Delta(content=text), logprobs=logprobs)
        return Choice(index=index, text=text, logprobs=logprobs)

    def _logprobs(self, scored: Sequence[Scored] | None) -> CompletionLogprobs | ChatLogprobs | None:
        if scored is None:
            return None
        return chat_logprobs(scored) if self._kind == "chat" else completion_logprobs(scored)

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


class _PeerError(msgspec.Struct):
    """An error as others write it: vLLM's `code` is an HTTP status."""

    message: str
    type: str = "server_error"
    param: str | None = None
    code: str | int | None = None


class _PeerErrorBody(msgspec.Struct):
    error: _PeerError


def parse_error(body: bytes) -> ErrorDetail | None:
    """The error in a peer's answer, or None when `body` is no such thing."""
    try:
        error = msgspec.json.decode(body, type=_PeerErrorBody).error
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return ErrorDetail(error.message, error.type, error.param, error.code if isinstance(error.code, str) else None)
