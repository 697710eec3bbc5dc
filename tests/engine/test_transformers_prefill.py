"""How a prefill hands over: layer by layer, chunk by chunk, states once, windows only where they are needed."""

from __future__ import annotations

from typing import Any

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.testing.gather import gather

CHUNK = 128


@pytest.mark.slow
async def test_rows_come_in_order_of_chunk_then_layer(engine: Any) -> None:
    both = await engine("tiny-gemma3")
    sink = await gather(both, [3] * 400)
    order = [((extent.stop - 1) // CHUNK, extent.layer) for extent, _ in sink.puts]
    assert order == sorted(order)
    assert {chunk for chunk, _ in order} == {0, 1, 2, 3}


@pytest.mark.slow
async def test_states_come_once_exact_and_with_their_own_layers_last_chunk(engine: Any) -> None:
    both = await engine()
    sink = await gather(both, [5] * 300)
    states = [part for part in both.layout.parts if part.kind is PartKind.STATE]
    assert {part.layer for part in states} == {0, 1, 2}
    found = [extent for extent, _ in sink.puts if (extent.start, extent.stop) == (0, 300)]
    assert [(extent.layer, extent.part) for extent in found] == [(part.layer, part.name) for part in states]
    # Layer 0 hands over before layer 3 has even run its last chunk.
    last = [extent.layer for extent, _ in sink.puts if extent.stop == 300]
    assert last == sorted(last)
    assert last[-1] == 3


async def test_window_rows_outside_the_final_window_stay(engine: Any) -> None:
    both = await engine("tiny-gemma3")
    sink = await gather(both, [9] * 500)
    window = next(part for part in both.layout.parts if part.kind is PartKind.WINDOW)
    assert window.window == 95
    rows = [(e.start, e.stop) for e, _ in sink.puts if (e.layer, e.part) == (window.layer, window.name)]
    assert rows == [(405, 448), (448, 500)]  # cut where a snapshot may be
    sink = await gather(both, [9] * 420)  # the window crosses a chunk
    rows = [(e.start, e.stop) for e, _ in sink.puts if (e.layer, e.part) == (window.layer, window.name)]
    assert rows == [(325, 384), (384, 420)]


async def test_what_was_handed_out_never_changes(engine: Any, answer: Any) -> None:
    """transformers updates states in place, and decoding goes on from the same tensors."""
    both = await engine()
    tokens = [(i * i) % 256 for i in range(200)]
    sink = await gather(both, tokens)
    before = [bytes(data) for _, data in sink.puts]
    await answer(both, [*tokens, 1], sink.landed, 16)
    await gather(both, tokens[::-1])
    assert [bytes(data) for _, data in sink.puts] == before


async def test_landed_is_copied_and_not_written(engine: Any, answer: Any) -> None:
    both = await engine()
    tokens = [(i * i) % 256 for i in range(200)]
    landed = (await gather(both, tokens)).landed
    before = {key: bytes(value) for key, value in landed.parts.items()}
    first = await answer(both, [*tokens, 1], landed, 16)
    assert {key: bytes(value) for key, value in landed.parts.items()} == before
    assert await answer(both, [*tokens, 1], landed, 16) == first


async def test_nothing_to_compute_is_nothing_to_hand_over(engine: Any) -> None:
    sink = await gather(await engine(), [])
    assert sink.puts == []


@pytest.mark.parametrize("kind", ["tiny-hybrid", "tiny-gemma3", "tiny-qwen3-next", "tiny-falcon-h1"])
async def test_chunk_size_changes_only_where_rows_are_cut(engine: Any, kind: str) -> None:
    """Chunks behind a cache compute what one pass does, up to rounding; the same set of rows crosses the wire."""
    import torch

    small, large = await engine(kind, chunk_tokens=64), await engine(kind, chunk_tokens=512)
    tokens = [(i * 31) % 256 for i in range(321)]
    one, other = await gather(small, tokens), await gather(large, tokens)
    assert one.coverage.have() == other.coverage.have()
    for key, buffer in one.landed.parts.items():
        here, there = (torch.frombuffer(b, dtype=torch.float32) for b in (buffer, other.landed.parts[key]))
        assert torch.allclose(here, there, rtol=1e-3, atol=1e-3), key
