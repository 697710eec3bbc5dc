"""A turn that resumes from a prefix answers as one that computes all, for every kind of model."""

from __future__ import annotations

import random
from typing import Any

import pytest

from prfaas.core.cache.spec import block_bytes
from prfaas.engine.base import Sampling
from prfaas.engine.node.prefixes import Prefixes, placement_of
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.testing.gather import Gatherer, gather

KINDS = ["tiny-hybrid", "tiny-qwen3-next", "tiny-gemma3", "tiny-falcon-h1"]
STATELESS = "tiny-qwen3"
SNAPSHOT = 64


class Home:
    """One engine and its KV memory, as a node has them."""

    def __init__(self, engine: Any, blocks: int = 512) -> None:
        self.engine = engine
        self.spec = spec_of(engine.layout, engine.limits.block_tokens)
        self.prefixes = Prefixes(
            self.spec, engine.limits.block_tokens, blocks, copies=True, placement=placement_of(engine.limits, self.spec)
        )
        self.asked = 0

    def begin(self, tokens: list[int], count: int) -> tuple[str, Reuse]:
        self.asked += 1
        owner = f"s{self.asked}"
        reuse = self.prefixes.begin(owner, self.prefixes.want(len(tokens) + count, 1, tokens))
        assert reuse is not None
        return owner, reuse

    def end(self, owner: str) -> None:
        self.prefixes.end(owner)
        self.prefixes.validate()
        assert self.prefixes.working_blocks == 0

    async def answer(self, tokens: list[int], count: int = 8) -> tuple[list[int], list[float], int]:
        """The tokens, how likely each was, and how many of the prompt's were not computed."""
        owner, reuse = self.begin(tokens, count)
        cached = reuse.tokens
        sampling = Sampling(count, temperature=0.0, logprobs=0)
        found = [token async for token in self.engine.generate(tokens, sampling, None, reuse)]
        self.end(owner)
        return [token.id for token in found], [token.logprobs.own for token in found], cached


async def alone(engine: Any, tokens: list[int], count: int = 8) -> tuple[list[int], list[float]]:
    sampling = Sampling(count, temperature=0.0, logprobs=0)
    found = [token async for token in engine.generate(tokens, sampling, None)]
    return [token.id for token in found], [token.logprobs.own for token in found]


def floor(length: int) -> int:
    return length - length % SNAPSHOT


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, STATELESS])
async def test_the_second_turn_computes_only_what_is_new(engine: Any, rng: random.Random, kind: str) -> None:
    home = Home(await engine(kind))
    for first, more, said in ((1600, 600, 30), (1500, 700, 70), (65, 1, 1), (70, 200, 3), (128, 64, 64)):
        turn = [rng.randrange(256) for _ in range(first)]
        answer, _, cached = await home.answer(turn, said)
        assert cached == 0
        turn = [*turn, *answer, *(rng.randrange(256) for _ in range(more))]
        again, scores, cached = await home.answer(turn)
        assert cached == floor(first + said - 1)
        expected, likely = await alone(home.engine, turn)
        assert again == expected
        assert scores == pytest.approx(likely, abs=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, STATELESS])
async def test_the_same_prompt_again_is_the_same_to_the_bit(engine: Any, rng: random.Random, kind: str) -> None:
    """Prefill is cut where it can resume, with or without a prefix: so what follows is computed alike."""
    home = Home(await engine(kind))
    for length in (64, 65, 66, 129, 320, 321, 700):
        turn = [rng.randrange(256) for _ in range(length)]
        expected = await alone(home.engine, turn)
        for cached in (0, floor(length - 1), floor(length - 1)):
            *found, hit = await home.answer(turn)
            assert (tuple(found), hit) == (expected, cached), length


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*KINDS, STATELESS])
async def test_branches_of_one_system_prompt(engine: Any, rng: random.Random, kind: str) -> None:
    """The second one resumes at the end of a chunk on the way, and leaves a snapshot where it leaves the first one's
    way; the third resumes there."""
    home = Home(await engine(kind))
    system = [rng.randrange(256) for _ in range(500)]
    hits = []
    for _ in range(4):
        turn = [*system, *(rng.randrange(256) for _ in range(150))]
        answer, scores, cached = await home.answer(turn)
        expected, likely = await alone(home.engine, turn)
        assert answer == expected
        assert scores == pytest.approx(likely, abs=2e-4)
        hits.append(cached)
    stateless = home.spec is not None and not home.spec.stateful
    assert hits == [0, 448 if stateless else 256, 448, 448]


@pytest.mark.parametrize("kind", ["tiny-hybrid", "tiny-gemma3"])
async def test_a_prefill_from_a_prefix_hands_over_all(engine: Any, answer: Any, rng: random.Random, kind: str) -> None:
    home = Home(await engine(kind))
    prompt = [rng.randrange(256) for _ in range(300)]
    for tokens in (prompt, prompt, [*prompt, *prompt[::-1]], prompt[:257]):
        whole = await gather(home.engine, tokens[:-1])
        owner, reuse = home.begin(tokens, 0)
        cached = reuse.tokens
        sink = Gatherer(home.engine.layout, len(tokens) - 1)
        await home.engine.prefill(tokens[:-1], sink, reuse)
        assert sink.coverage.complete
        home.prefixes.keep(owner)
        home.prefixes.validate()
        home.end(owner)
        assert await answer(home.engine, tokens, sink.landed) == await answer(home.engine, tokens, whole.landed)
        if tokens is prompt:
            assert sink.landed.parts == whole.landed.parts
    assert cached == 256


async def test_what_landed_is_kept(engine: Any, rng: random.Random) -> None:
    """With state, from the first boundary in the answer on; and at the prompt's end when that is one."""
    home = Home(await engine("tiny-falcon-h1"))
    for length, said, kept in ((257, 2, 256), (300, 40, 320), (300, 10, 0)):
        tokens = [rng.randrange(256) for _ in range(length)]
        landed = (await gather(home.engine, tokens[:-1])).landed
        wanted = home.prefixes.want(length + said, 1, tokens, landed=True)
        reuse = home.prefixes.begin("landed", wanted)
        assert reuse is not None
        assert reuse.tokens == 0
        sampling = Sampling(said, temperature=0.0)
        made = [token.id async for token in home.engine.generate(tokens, sampling, landed, reuse)]
        home.end("landed")
        turn = [*tokens, *made, 1, 2, 3]
        found, _, cached = await home.answer(turn)
        assert cached == kept
        assert found == (await alone(home.engine, turn))[0]


async def test_whoever_leaves_in_the_middle_leaves_what_is_computed(engine: Any, rng: random.Random) -> None:
    home = Home(await engine("tiny-falcon-h1"))
    tokens = [rng.randrange(256) for _ in range(200)]
    for leave_after in (0, 1, 30, 70):
        owner, reuse = home.begin(tokens, 100)
        answer = home.engine.generate(tokens, Sampling(100, temperature=0.0), None, reuse)
        made = []
        while len(made) < leave_after:
            made.append((await anext(answer)).id)
        await answer.aclose()
        home.end(owner)
    found, _, cached = await home.answer([*tokens, *made, 7])
    assert cached >= floor(200 + 70 - 1)
    assert found == (await alone(home.engine, [*tokens, *made, 7]))[0]


async def test_a_prefix_of_other_tokens_is_heard(engine: Any, rng: random.Random) -> None:
    """So the equality above is no accident: each byte of a piece is read."""
    home = Home(await engine("tiny-hybrid"))
    tokens = [rng.randrange(256) for _ in range(200)]
    expected, *_ = await home.answer(tokens, 8)
    owner, reuse = home.begin(tokens, 8)
    assert reuse.tokens == 192
    for at in range(len(reuse.blocks) + len(reuse.state)):
        spoilt = reuse.again()
        pieces: list[Any] = [*reuse.blocks, *reuse.state]
        pieces[at] = pieces[at].flip(0)
        spoilt.blocks, spoilt.state = pieces[:3], pieces[3:]
        found = [t.id async for t in home.engine.generate(tokens, Sampling(8, temperature=0.0), None, spoilt)]
        assert found != expected, at
    home.end(owner)
    assert (await home.answer(tokens, 8))[0] == expected


async def test_a_full_memory_forgets_the_oldest(engine: Any, rng: random.Random) -> None:
    home = Home(await engine("tiny-qwen3-next"), blocks=24)
    prompts = [[rng.randrange(256) for _ in range(150)] for _ in range(12)]
    for prompt in prompts:
        await home.answer(prompt, 4)
    assert home.prefixes.prefix_blocks <= 24
    kept: list[Any] = [*home.prefixes._pieces.values()]
    held_bytes = sum(piece.untyped_storage().nbytes() for piece in kept)  # no piece keeps a larger buffer alive
    assert held_bytes == sum(piece.numel() for piece in kept) <= 24 * block_bytes(home.engine.layout, 64)
    hits = [home.begin(prompt, 4) for prompt in prompts[::-1][:1]]
    for owner, reuse in hits:
        assert reuse.tokens == 128
        home.end(owner)
    owner, reuse = home.begin(prompts[0], 4)
    assert reuse.tokens == 0
    home.end(owner)
