"""From an engine's log-probabilities to what OpenAI's API shows: ids become bytes and places in the text.

It knows tokens and a model's text; it does not know answers or requests.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.errors import RequestError
from prfaas.engine.base import Logprobs, Token
from prfaas.model.text import Text
from prfaas.wire.openai import Scored


def scored_token(text: Text, token: Token, offset: int) -> Scored:
    """A generated token that begins at character `offset`. Raises RequestError when the engine told nothing."""
    if token.logprobs is None:
        raise _silent()
    return _scored(text, token.id, token.logprobs, offset)


def scored_prompt(text: Text, tokens: Sequence[int], logprobs: Sequence[Logprobs | None]) -> list[Scored]:
    """The prompt's tokens, the first without a log-probability. Long work. Raises RequestError like `scored_token`."""
    if len(logprobs) != len(tokens):
        raise _silent()
    places = zip(tokens, logprobs, text.offsets(tokens), strict=True)
    return [_scored(text, token, one, offset) for token, one, offset in places]


def _scored(text: Text, token: int, logprobs: Logprobs | None, offset: int) -> Scored:
    if logprobs is None:
        return Scored(text.spell(token), None, (), offset)
    top = tuple((text.spell(other), value) for other, value in logprobs.top)
    return Scored(text.spell(token), logprobs.own, top, offset)


def _silent() -> RequestError:
    return RequestError("this engine tells no log-probabilities", param="logprobs", code="unsupported_parameter")
