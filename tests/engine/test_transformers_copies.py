"""A prefix that one memory lends and another keeps is resumed as the first one resumes it, for every kind of model."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.engine.test_transformers_reuse import Home, alone

from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import needed
from prfaas.engine.node.fetching import held_of
from prfaas.engine.node.prefixes import Prefixes
from prfaas.engine.reuse import spec_of
from prfaas.testing.gather import Gatherer
from prfaas.transport.base import LandedKV

KINDS = ["tiny-hybrid", "tiny-qwen3-next", "tiny-gemma3", "tiny-falcon-h1", "tiny-qwen3"]


async def lent(home: Home, tokens: list[int], held: int = 0) -> LandedKV:
    """What crosses of the prefix `tokens`, which `home` keeps, to who holds the first `held`."""
    wanted = home.prefixes.want_loan(tokens)
    assert wanted is not None
    reuse = home.prefixes.begin("loan", wanted)
    assert reuse is not None
    assert reuse.tokens == len(tokens)
    sink = Gatherer(home.engine.layout, len(tokens))
    await home.engine.prefill(tokens, sink, reuse)
    assert sink.coverage.complete
    home.end("loan")
    return increment(home.engine.layout, sink.landed, held)


def increment(layout: Any, landed: LandedKV, held: int) -> LandedKV:
    """As the transport hands it over."""
    parts = {(part.layer, part.name): part for part in layout.parts}
    found = {}
    for one in needed(layout, landed.length, held):
        part = parts[one.layer, one.part]
        skipped = 0 if part.kind == "state" else (one.start - part.first_row(landed.length)) * part.unit_bytes
        found[one.layer, one.part] = landed.parts[one.layer, one.part][skipped:]
    return LandedKV(landed.length, held, found)


async def fetched(home: Home, tokens: list[int], landed: LandedKV) -> int:
    """`home` keeps what came; how much it had before."""
    wanted = home.prefixes.want_fetched(tokens)
    assert wanted is not None
    reuse = home.prefixes.begin("fetch", wanted)
    assert reuse is not None
    had = reuse.tokens
    assert landed.held in (0, had)
    await home.engine.adopt(tokens, landed, reuse)
    home.end("fetch")
    return had


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_fetched_is_resumed_to_the_bit(engine: Any, rng: random.Random, kind: str) -> None:
    lender = Home(await engine(kind))
    for length in (65, 300, 700):
        prompt = [rng.randrange(256) for _ in range(length)]
        prefix = prompt[: (length - 1) // 64 * 64]
        expected = await alone(lender.engine, prompt)
        await lender.answer(prompt)
        near = Home(lender.engine)
        assert await fetched(near, prefix, await lent(lender, prefix)) == 0
        *found, cached = await near.answer(prompt)
        assert cached == len(prefix)
        assert tuple(found) == expected


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_here_before_is_joined_with_what_comes(engine: Any, rng: random.Random, kind: str) -> None:
    lender = Home(await engine(kind))
    prompt = [rng.randrange(256) for _ in range(700)]
    expected = await alone(lender.engine, prompt)
    await lender.answer(prompt)
    near = Home(lender.engine)
    await near.answer(prompt[:129])
    held = held_of(lender.engine.layout, 640, 128)
    assert await fetched(near, prompt[:640], await lent(lender, prompt[:640], held)) == 128
    *found, cached = await near.answer(prompt)
    assert cached == 640
    assert tuple(found) == expected


async def test_half_of_it_is_refused(engine: Any, rng: random.Random) -> None:
    """And nothing is kept, nothing held."""
    lender = Home(await engine("tiny-hybrid"))
    prompt = [rng.randrange(256) for _ in range(200)]
    await lender.answer(prompt)
    whole = await lent(lender, prompt[:192])
    for key in whole.parts:
        half = LandedKV(192, 0, {other: data for other, data in whole.parts.items() if other != key})
        near = Home(lender.engine)
        with pytest.raises(InvariantError, match="landed KV"):
            await fetched(near, prompt[:192], half)
        near.prefixes.end("fetch")
        near.prefixes.validate()
        assert near.prefixes.prefix_blocks == near.prefixes.working_blocks == 0


async def test_what_is_no_prefix_is_neither_lent_nor_fetched(engine: Any, rng: random.Random) -> None:
    home = Home(await engine("tiny-hybrid"))
    prompt = [rng.randrange(256) for _ in range(200)]
    await home.answer(prompt)
    assert home.prefixes.want_loan(prompt[:64]) is None, "no snapshot there"
    assert home.prefixes.want_loan(prompt[:100]) is None
    assert home.prefixes.want_loan([]) is None
    assert home.prefixes.want_fetched(prompt[:100]) is None
    plain = Prefixes(None, 64, 16)
    assert not plain.copyable
    assert plain.want_loan(prompt[:192]) is plain.want_fetched(prompt[:192]) is None
    assert spec_of(home.engine.layout, 64) is not None
