"""Chunks cover what they were cut from, in order, within the limit; clipping drops exactly what is held."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.transfer.chunk import Chunk, clip, recut, split
from prfaas.core.transfer.extent import Extent, extent_bytes

ROWS = Part(0, "k", PartKind.TOKENS, (4, 8), "float32")
STATE = Part(1, "s", PartKind.STATE, (6, 4, 4), "float32")


@given(st.integers(0, 50), st.integers(1, 300), st.integers(0, 3), st.integers(1, 4), st.integers(1, 5000))
def test_rows_are_cut_by_tokens(start: int, tokens: int, lo: int, heads: int, limit: int) -> None:
    extent = Extent(0, "k", start, start + tokens, (lo, min(4, lo + heads)))
    chunks = split(ROWS, extent, 3, limit)
    assert [c.extent.start for c in chunks] == [start, *[c.extent.stop for c in chunks[:-1]]]
    assert chunks[-1].extent.stop == extent.stop
    offset = 0
    for chunk in chunks:
        assert (chunk.key, chunk.extent.heads, chunk.offset) == (3, extent.heads, offset)
        assert chunk.size == extent_bytes(ROWS, chunk.extent)
        assert chunk.size <= limit or chunk.extent.tokens == 1
        offset += chunk.size
    assert offset == extent_bytes(ROWS, extent)


@given(st.integers(1, 1000))
def test_states_are_cut_by_heads(limit: int) -> None:
    chunks = split(STATE, Extent(1, "s", 0, 77, (0, 6)), 0, limit)
    assert [c.extent.heads[0] for c in chunks] == [0, *[c.extent.heads[1] for c in chunks[:-1]]]
    assert all((c.extent.start, c.extent.stop) == (0, 77) for c in chunks)
    assert all(c.size <= limit or c.extent.heads[1] - c.extent.heads[0] == 1 for c in chunks)
    assert sum(c.size for c in chunks) == STATE.unit_bytes


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_cutting_twice_is_cutting_once_more(first: int, second: int) -> None:
    for part, extent in ((ROWS, Extent(0, "k", 3, 60, (0, 4))), (STATE, Extent(1, "s", 0, 77, (0, 6)))):
        at = 0
        for chunk in split(part, extent, 9, first):
            for piece in recut(chunk, part, second):
                assert (piece.key, piece.offset, piece.size) == (9, at, extent_bytes(part, piece.extent))
                at += piece.size
        assert at == extent_bytes(part, extent)


def test_clip() -> None:
    chunk = Chunk(5, Extent(0, "k", 10, 20, (0, 4)), 1000, 10 * 128)
    assert clip(chunk, ROWS, 10) == chunk
    assert clip(chunk, ROWS, 20) is None
    assert clip(chunk, ROWS, 17) == Chunk(5, Extent(0, "k", 17, 20, (0, 4)), 1000 + 7 * 128, 3 * 128)
    state = Chunk(5, Extent(1, "s", 0, 20, (0, 6)), 0, STATE.unit_bytes)
    assert clip(state, STATE, 19) == state
