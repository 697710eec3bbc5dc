"""Tiny models made once a run, and engines that close."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from prfaas.transport.base import LandedKV

CHUNK = 128


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model, made when first asked for."""
    from prfaas.engine.transformers.tiny import build_tiny

    home = tmp_path_factory.mktemp("tiny")
    return lambda kind: build_tiny(kind, home / kind)


@pytest.fixture
async def engine(tiny: Callable[[str], Path]) -> AsyncIterator[Callable[..., Any]]:
    """`await engine(kind, **options)`: a started TransformersEngine, closed after the test."""
    from prfaas.engine.transformers.engine import TransformersEngine

    started: list[TransformersEngine] = []

    async def start(kind: str = "tiny-hybrid", **options: Any) -> TransformersEngine:
        made = TransformersEngine(tiny(kind), **({"kv_blocks": 256, "chunk_tokens": CHUNK} | options))
        started.append(made)
        await made.start()
        return made

    yield start
    for one in started:
        await one.close()
        assert one.running == 0


@pytest.fixture
def answer() -> Callable[..., Any]:
    """`await answer(engine, tokens, landed)`: the greedy tokens."""
    from prfaas.engine.base import Sampling

    async def generate(engine: Any, tokens: list[int], landed: LandedKV | None, count: int = 8) -> list[int]:
        found = [token async for token in engine.generate(tokens, Sampling(count, temperature=0.0), landed)]
        assert [token.finish for token in found] == [None] * (len(found) - 1) + ["length"]
        assert len(found) == count
        return [token.id for token in found]

    return generate
