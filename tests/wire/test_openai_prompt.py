"""What a head keeps of a prompt and passes on: the ids themselves, unread by whoever passes them on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from prfaas.core.errors import RequestError
from prfaas.model.text import Text, packed, prompt_hash
from prfaas.testing.bytemodel import write_byte_model
from prfaas.wire.control import PrefillRequest
from prfaas.wire.openai import parse_completion
from prfaas.wire.openai.prompt import prompt_of, prompt_tokens


@pytest.fixture
def text(tmp_path: Path) -> Iterator[Text]:
    made = Text.load(write_byte_model(tmp_path))
    yield made
    made.close()


def completion(prompt: object) -> bytes:
    return msgspec.json.encode({"model": "m", "prompt": prompt})


@pytest.mark.parametrize("prompt", ["as text", [65, 66, 67], [[0]], list(range(250)) * 40])
async def test_ids_are_the_same_at_the_other_end(text: Text, prompt: object) -> None:
    tokens = await prompt_tokens(parse_completion(completion(prompt)), text)
    made = await prompt_of(tokens, text)
    assert (made.tokens, made.hash) == (len(tokens), prompt_hash(tokens))
    asked = PrefillRequest("t.1", "home", "m", "layout", "node", "link", made.ids, made.tokens, 1000)
    heard = msgspec.json.decode(msgspec.json.encode(asked), type=PrefillRequest)
    leg = parse_completion(msgspec.json.encode({"model": "m", "prompt": heard.tokens}))
    assert await prompt_tokens(leg, text) == tokens == packed(msgspec.json.decode(heard.tokens))
    assert heard.prompt_tokens == len(tokens)


@pytest.mark.parametrize(("prompt", "said"), [([65, -1], "-1"), ([65, 2**40], str(2**40)), ([[300]], "300")])
async def test_ids_out_of_range_are_refused_by_number(text: Text, prompt: object, said: str) -> None:
    with pytest.raises(RequestError, match=f"token id {said} is out of range") as caught:
        await prompt_tokens(parse_completion(completion(prompt)), text)
    assert (caught.value.status, caught.value.code) == (400, "token_out_of_range")
