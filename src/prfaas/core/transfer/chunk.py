"""Chunks: how what an engine put is cut to go over several connections, and what of it a receiver needs at all.

It knows extents and bytes; it never holds data: a chunk names the put that it is a piece of, and where in it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.transfer.extent import Extent, extent_bytes, row_bytes


@dataclass(frozen=True, slots=True)
class Chunk:
    """`size` bytes at `offset` of what was put under `key`: the bytes of `extent`."""

    key: int
    extent: Extent
    offset: int
    size: int


def split(part: Part, extent: Extent, key: int, limit_bytes: int) -> list[Chunk]:
    """Cut `extent` into chunks of at most `limit_bytes`, rows by tokens and states by heads.

    Both are the outermost axis of the bytes, so that each chunk is contiguous in what was put. One row (all heads of
    one token), or one head of a state, is never cut, however large.
    """
    heads = extent.heads[1] - extent.heads[0]
    size = extent_bytes(part, extent)
    if size <= limit_bytes:
        return [Chunk(key, extent, 0, size)]
    if part.kind is PartKind.STATE:
        unit, first, last = row_bytes(part), extent.heads[0], extent.heads[1]
    else:
        unit, first, last = row_bytes(part) * heads, extent.start, extent.stop
    step = max(1, limit_bytes // unit)
    chunks = []
    for a in range(first, last, step):
        b = min(a + step, last)
        piece = replace(extent, heads=(a, b)) if part.kind is PartKind.STATE else replace(extent, start=a, stop=b)
        chunks.append(Chunk(key, piece, (a - first) * unit, (b - a) * unit))
    return chunks


def recut(chunk: Chunk, part: Part, limit_bytes: int) -> list[Chunk]:
    """`chunk` in chunks of at most `limit_bytes`, as `split` would have cut it."""
    pieces = split(part, chunk.extent, chunk.key, limit_bytes)
    return [replace(piece, offset=chunk.offset + piece.offset) for piece in pieces]


def clip(chunk: Chunk, part: Part, first_row: int) -> Chunk | None:
    """What of `chunk` lies at or after `first_row` (the receiver holds what is before); None when nothing does."""
    extent = chunk.extent
    if part.kind is PartKind.STATE or extent.start >= first_row:
        return chunk
    if extent.stop <= first_row:
        return None
    skipped = chunk.size // extent.tokens * (first_row - extent.start)
    return Chunk(chunk.key, replace(extent, start=first_row), chunk.offset + skipped, chunk.size - skipped)
