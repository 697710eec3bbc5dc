"""The built-in models: the same bytes everywhere, a tokenizer of bytes, answers that depend on the whole prompt."""

from __future__ import annotations

import concurrent.futures
import hashlib
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import ConfigError
from prfaas.engine.transformers import tiny as recipe
from prfaas.engine.transformers.tiny import build_tiny
from prfaas.engine.transformers.tinykinds import TINY_KINDS

pytestmark = pytest.mark.slow  # real models


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("kind", list(TINY_KINDS))
def test_the_same_bytes_every_time(tiny: Any, tmp_path: Path, kind: str) -> None:
    torch.manual_seed(random.randrange(1 << 30))
    state = torch.get_rng_state()
    assert digests(build_tiny(kind, tmp_path / "again")) == digests(tiny(kind))
    assert torch.equal(state, torch.get_rng_state())  # and nobody's chance was touched


def test_the_weights_are_these() -> None:
    """A change of recipe must be meant: it grows RECIPE, or two machines make two models of one name."""
    assert recipe.RECIPE == 1
    values = recipe._bell((2, 3), 1.0, torch.Generator().manual_seed(1))
    assert [value.hex() for value in values.flatten().tolist()] == [
        "0x1.181ae60000000p+1",
        "-0x1.7a46f60000000p-1",
        "-0x1.2140a20000000p-5",
        "-0x1.7823a20000000p-1",
        "0x1.55b37e0000000p-3",
        "0x1.3b23760000000p-1",
    ]


def test_many_ask_at_once(tmp_path: Path) -> None:
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: build_tiny("tiny-qwen3", tmp_path / "deep" / "model"), range(4)))
    assert set(found) == {tmp_path / "deep" / "model"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["model"]  # nothing half-made is left


def test_what_else_is_there_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        build_tiny("tiny-hybrid", tmp_path)
    assert digests(tmp_path) == {"notes.txt": hashlib.sha256(b"mine").hexdigest()}
    with pytest.raises(ConfigError, match="expected one of tiny-hybrid"):
        build_tiny("tiny-large", tmp_path / "x")


def test_the_tokenizer_is_bytes(tiny: Any) -> None:
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("tiny-hybrid"))
    for text in ("héllo", "a\n\tb  c ", "日本\x00", "'s don't 12345"):
        assert tokenizer.encode(text) == list(text.encode())
        assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.encode("<|bos|><|eos|><|pad|>") == [256, 257, 258]
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}]
    told = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert told == "<|bos|><system>s\n<user>hi\n<assistant>"


async def test_kinds_have_the_caches_they_are_there_for(engine: Any) -> None:
    kinds = {kind: (await engine(kind)).layout for kind in TINY_KINDS}
    found = {kind: [tuple(p.kind for p in layout.of_layer(i)) for i in range(4)] for kind, layout in kinds.items()}
    tokens, window, states = (PartKind.TOKENS,) * 2, (PartKind.WINDOW,) * 2, (PartKind.STATE,) * 2
    assert found == {
        "tiny-hybrid": [states, states, states, tokens],
        "tiny-qwen3": [tokens] * 4,
        "tiny-qwen3-next": [states, states, states, tokens],
        "tiny-gemma3": [window, tokens, window, tokens],
        "tiny-falcon-h1": [tokens + states] * 4,
    }
    mla = kinds["tiny-hybrid"].of_layer(3)
    assert [(part.shape, part.sharded) for part in mla] == [((1, 128), False), ((1, 32), False)]


@pytest.mark.parametrize("kind", list(TINY_KINDS))
async def test_answers_depend_on_the_far_end_of_the_prompt(engine: Any, answer: Any, kind: str) -> None:
    both = await engine(kind)
    rng = random.Random(5)
    changed = 0
    for _ in range(3):
        tokens = [rng.randrange(256) for _ in range(500)]
        other = [tokens[0] ^ 0x55, tokens[1] ^ 0x2A, *tokens[2:]]
        changed += await answer(both, tokens, None, 16) != await answer(both, other, None, 16)
    assert changed >= 2
