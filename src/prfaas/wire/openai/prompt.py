"""A body as a request, and its prompt as token ids: the one way that gateway and nodes share, so that counts and
hashes agree.

It knows the text of a model; it does not know HTTP. Long work is done off the event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from prfaas.model.blockhash import block_hashes
from prfaas.model.text import Fits, Text, prompt_hash
from prfaas.wire.openai.request import AnyRequest, ChatCompletionRequest

LARGE_BYTES = 64 << 10
"""Bodies from this size on are parsed in a thread: 25 long ones at once would stop a loop for a tenth of a second."""


async def parsed(parse: Callable[[bytes], AnyRequest], body: bytes, text: Text) -> AnyRequest:
    """What `parse` makes of `body`. Raises what it raises."""
    return parse(body) if len(body) < LARGE_BYTES else await text.off_loop(lambda: parse(body), len(body))


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a head keeps of a prompt: how many `tokens`, their `hash`, and their `ids` as a JSON list, which is passed
    on as it is. `blocks`: canonical hashes of all but the last token, where they were asked for."""

    tokens: int
    hash: str
    ids: msgspec.Raw
    blocks: Sequence[int] = ()


async def prompt_of(tokens: array[int], text: Text, root: int | None = None) -> Prompt:
    """`tokens` for passing on, made off the event loop. `root`: what the hashes of its blocks begin with, if wanted."""

    def made() -> Prompt:
        blocks = () if root is None else block_hashes(tokens[:-1], root)
        return Prompt(len(tokens), prompt_hash(tokens), msgspec.Raw(msgspec.json.encode(tokens.tolist())), blocks)

    return await text.off_loop(made, len(tokens))


async def prompt_tokens(request: AnyRequest, text: Text, fits: Fits | None = None) -> array[int]:
    """Ids of the prompt, at least one, all in range, made off the event loop; a text sure to be more than `fits`
    takes is not tokenized. Raises RequestError, 400, and what `fits` raises."""
    if isinstance(request, ChatCompletionRequest):
        return await text.encode_chat([message.as_dict() for message in request.messages], fits)
    prompt = request.text_or_ids
    return await (text.encode(prompt, fits) if isinstance(prompt, str) else text.checked(prompt))
