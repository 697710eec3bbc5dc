"""Tiny models made once a run, engines that close, and a sink that gathers what a prefill hands over."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.transfer.extent import Coverage, Extent
from prfaas.transport.base import LandedKV

CHUNK = 128


class Gatherer:
    """A sink that demands what a receiver demands, and lands the bytes."""

    def __init__(self, layout: KVLayout, length: int) -> None:
        self.landed = LandedKV(length)
        self.coverage = Coverage(layout, length)
        self.puts: list[tuple[Extent, memoryview]] = []
        self.closed = False
        self._parts = {(part.layer, part.name): part for part in layout.parts}

    def put(self, extent: Extent, data: memoryview) -> None:
        assert not self.closed, "a put after the prefill returned"
        part = self._parts[extent.layer, extent.part]
        assert self.coverage.fits(extent) is part
        assert extent.final
        assert data.contiguous
        assert data.readonly
        rows = 1 if part.kind is PartKind.STATE else extent.tokens
        assert data.nbytes == rows * part.unit_bytes
        assert self.coverage.add(extent), f"{extent} brought nothing new"
        length = self.landed.length
        buffer = self.landed.parts.setdefault((part.layer, part.name), bytearray(part.bytes_at(length)))
        at = 0 if part.kind is PartKind.STATE else (extent.start - part.first_row(length)) * part.unit_bytes
        buffer[at : at + data.nbytes] = data.cast("B")
        self.puts.append((extent, data))


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
def gather() -> Callable[..., Any]:
    """`await gather(engine, tokens)`: the Gatherer after a prefill of `tokens`."""

    async def prefill(engine: Any, tokens: list[int]) -> Gatherer:
        sink = Gatherer(engine.layout, len(tokens))
        await engine.prefill(tokens, sink)
        sink.closed = True
        assert sink.coverage.complete
        return sink

    return prefill


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
