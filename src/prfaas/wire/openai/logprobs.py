"""Log-probabilities as OpenAI's two endpoints show them.

It knows shapes and how a token without text of its own is written; it does not know tokenizers or engines.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

FLOOR = -9999.0
"""OpenAI's word for "very unlikely"; also for minus infinity, which JSON cannot say."""


@dataclass(frozen=True, slots=True)
class Scored:
    """One token: its bytes, its log-probability (None for a prompt's first token), the likeliest beside it, best first,
    and `offset`, the character of the choice's text at which it begins, or goes on with an unfinished one."""

    token: bytes
    logprob: float | None
    top: tuple[tuple[bytes, float], ...] = ()
    offset: int = 0


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of `/v1/completions`, one entry a token in each list."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that might have come."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct, frozen=True):
    """A token that came."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """`choices[].logprobs` of `/v1/chat/completions`."""

    content: list[ChatLogprob]
    refusal: None = None


def completion_logprobs(scored: Iterable[Scored]) -> CompletionLogprobs:
    """`top_logprobs` has the likeliest and always the token itself; of two that are written alike, the likelier."""
    found = CompletionLogprobs([], [], [], [])
    for one in scored:
        token = _written(one.token, "bytes:")
        found.tokens.append(token)
        found.token_logprobs.append(None if one.logprob is None else max(FLOOR, one.logprob))
        found.text_offset.append(one.offset)
        if one.logprob is None:
            found.top_logprobs.append(None)
            continue
        top: dict[str, float] = {}
        for other, logprob in (*one.top, (one.token, one.logprob)):
            top.setdefault(_written(other, "bytes:"), max(FLOOR, logprob))
        found.top_logprobs.append(top)
    return found


def chat_logprobs(scored: Sequence[Scored]) -> ChatLogprobs:
    """`top_logprobs` has exactly the likeliest. Only generated tokens: each has a log-probability."""
    content = []
    for one in scored:
        top = [TopLogprob(_written(token), max(FLOOR, logprob), list(token)) for token, logprob in one.top]
        own = FLOOR if one.logprob is None else max(FLOOR, one.logprob)
        content.append(ChatLogprob(_written(one.token), own, list(one.token), top))
    return ChatLogprobs(content)


def _written(token: bytes, mark: str = "") -> str:
    r"""The token's text; bytes that are no text alone are written `\xf0\x9f`, in completions behind `bytes:`."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return mark + "".join(f"\\x{byte:02x}" for byte in token)
