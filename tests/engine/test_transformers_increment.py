"""Rows that were kept and rows that landed make the cache that all of it landed into would be, byte by byte."""

from __future__ import annotations

import random
from typing import Any

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import InvariantError
from prfaas.engine.base import Sampling
from prfaas.engine.landed import kept_rows
from prfaas.engine.node.prefixes import Prefixes, placement_of
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.engine.transformers.layout import tensor_of
from prfaas.testing.gather import gather
from prfaas.transport.base import LandedKV

KINDS = ["tiny-hybrid", "tiny-qwen3-next", "tiny-gemma3", "tiny-falcon-h1", "tiny-qwen3"]
WINDOW = 95
"""Rows that tiny-gemma3 keeps of a window."""


class Home:
    """A decode node's engine and KV memory, and the prefill node's engine: the same one, in 64 tokens a time, so that
    a prefix has the same bytes in every prompt."""

    def __init__(self, engine: Any, blocks: int = 256) -> None:
        self.engine = engine
        spec = spec_of(engine.layout, engine.limits.block_tokens)
        self.prefixes = Prefixes(
            spec, engine.limits.block_tokens, blocks, copies=True, placement=placement_of(engine.limits, spec)
        )

    async def land(self, prompt: list[int], room: int) -> tuple[LandedKV, Reuse]:
        """What crosses, and what it builds on."""
        held = self.prefixes.hold("one", prompt)
        landed = (await gather(self.engine, prompt[:-1], held)).landed
        reuse = self.prefixes.begin("one", self.prefixes.want(len(prompt) + room, 1, prompt, landed=True))
        assert reuse is not None
        assert (reuse.tokens, landed.held) == (held, held)
        return landed, reuse

    def end(self) -> None:
        self.prefixes.end("one")
        self.prefixes.validate()
        assert self.prefixes.working_blocks == 0

    async def answer(self, prompt: list[int], count: int) -> tuple[list[int], list[float], int]:
        """The tokens, how likely each was, and how many of the prompt's did not cross."""
        landed, reuse = await self.land(prompt, count)
        sampling = Sampling(count, temperature=0.0, logprobs=0)
        found = [token async for token in self.engine.generate(prompt, sampling, landed, reuse)]
        self.end()
        return [token.id for token in found], [token.logprobs.own for token in found], landed.held

    async def compare(self, prompt: list[int]) -> int:
        """Fails unless both ways fill a cache alike; how many tokens did not cross."""
        model, layout = self.engine._model, self.engine.layout
        whole = (await gather(self.engine, prompt[:-1])).landed
        landed, reuse = await self.land(prompt, 1)
        there, here = model.cache_from(whole, Reuse(keeps=False)), model.cache_from(landed, reuse)
        for part in layout.parts:
            one, other = (tensor_of(cache.layers[part.layer], part.name) for cache in (there, here))
            assert one.shape == other.shape
            assert one.stride() == other.stride()
            assert one.equal(other), f"layer {part.layer} {part.name}"
            saved = len(whole.parts[part.layer, part.name]) - len(landed.parts[part.layer, part.name])
            assert saved == len(kept_rows(part, landed)) * part.unit_bytes
        self.end()
        return landed.held


def floor(length: int, step: int = 64) -> int:
    return length - length % step


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_all_parts_byte_by_byte(engine: Any, rng: random.Random, kind: str) -> None:
    """Another prompt leaves the first one's way within what landed: so far its rows are the same to the bit."""
    first = [rng.randrange(256) for _ in range(500)]
    for branch, more in (
        (64, 1),
        (100, 300),
        (192, 30),
        (192, 63),
        (192, 94),
        (192, 95),
        (192, 96),
        (450, 2),
        (499, 7),
    ):
        home = Home(await engine(kind, chunk_tokens=64))
        *_, held = await home.answer(first, 3)
        assert held == 0
        prompt = [*first[:branch], *(255 - token for token in first[:more])]
        length = len(prompt) - 1
        most = min(branch, length - 1) if kind != "tiny-gemma3" else min(branch, length - WINDOW)
        assert await home.compare(prompt) == max(0, floor(most)), (branch, more)


async def test_a_window_that_begins_before_what_is_held(engine: Any, rng: random.Random) -> None:
    """Its rows are in a snapshot at exactly that length, and only there."""
    home = Home(await engine("tiny-gemma3", chunk_tokens=64))
    first = [rng.randrange(256) for _ in range(257)]
    await home.answer(first, 2)
    for more in (2, 40, 94, 95, 96, 200):
        assert await home.compare([*first[:256], *first[:more]]) == 256
    assert await home.compare([*first[:200], *first[:40]]) == 128


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_chat_receives_each_turn_once(engine: Any, rng: random.Random, kind: str) -> None:
    """The answers' rows are those that this node made itself."""
    home = Home(await engine(kind))
    said, before = [rng.randrange(256) for _ in range(300)], 0
    for count in (10, 70, 3, 100, 20):
        expected = [
            token async for token in home.engine.generate(said, Sampling(count, temperature=0.0, logprobs=0), None)
        ]
        made, likely, held = await home.answer(said, count)
        assert made == [token.id for token in expected]
        assert likely == pytest.approx([token.logprobs.own for token in expected], abs=2e-4)
        if kind == "tiny-gemma3":
            assert floor(min(before, len(said) - 1 - WINDOW)) <= held <= floor(before)
        else:
            assert held == floor(before)
        before = len(said) + count - 1
        said = [*said, *made, *(rng.randrange(256) for _ in range(50))]


async def test_what_does_not_fit_together_is_refused(engine: Any, rng: random.Random) -> None:
    home = Home(await engine("tiny-gemma3", chunk_tokens=64))
    first = [rng.randrange(256) for _ in range(257)]
    await home.answer(first, 2)
    prompt = [*first[:256], 1, 2, 3]
    landed, reuse = await home.land(prompt, 1)
    assert reuse.tokens == 256
    assert reuse.state

    async def refused(kv: LandedKV, prefix: Reuse, why: str) -> None:
        with pytest.raises(InvariantError, match=why):
            async for _ in home.engine.generate(prompt, Sampling(1), kv, prefix):
                pass

    await refused(landed, Reuse(keeps=False), "builds on 256 tokens, of which 0 are kept")
    await refused(landed, Reuse(256, reuse.blocks, keeps=False), "the window's rows before 256 neither landed nor")
    await refused(landed, Reuse(256, reuse.blocks[:3], reuse.state, keeps=False), "256 tokens has 3 blocks")
    await refused(landed, Reuse(256, reuse.blocks, reuse.state[:1], keeps=False), "kept KV of 256 tokens: layer")
    whole = LandedKV(258, 0, landed.parts)
    await refused(whole, Reuse(keeps=False), "landed KV of 258 tokens, 0 held: layer 0 k has")
    home.end()


async def test_every_kept_byte_is_read(engine: Any, rng: random.Random) -> None:
    home = Home(await engine("tiny-hybrid", chunk_tokens=64))
    first = [rng.randrange(256) for _ in range(200)]
    await home.answer(first, 8)
    prompt = [*first[:190], *first[:100]]
    landed, reuse = await home.land(prompt, 8)
    assert {part.kind for part in home.engine.layout.parts} == {PartKind.TOKENS, PartKind.STATE}
    right = [t.id async for t in home.engine.generate(prompt, Sampling(8, temperature=0.0), landed, reuse)]
    blocks: list[Any] = list(reuse.blocks)
    assert len(blocks) == 2
    for at in range(len(blocks)):
        spoilt = reuse.again()
        spoilt.blocks = [block.flip(0) if at == other else block for other, block in enumerate(blocks)]
        found = [t.id async for t in home.engine.generate(prompt, Sampling(8, temperature=0.0), landed, spoilt)]
        assert found != right, at
    home.end()
