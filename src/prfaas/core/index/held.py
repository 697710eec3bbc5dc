"""What one place holds, read back from the index as pieces, and what the index weighs.

It knows runs and keepers; it does not know who asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from prfaas.core.index.places import Keeper
from prfaas.core.index.runs import Run, numbers_of

BLOCK_HEAP_BYTES = 48 + 8
"""A hash of 64 bits as Python's allocator rounds it, and a run's pointer to it."""
RUN_HEAP_BYTES = 640
"""A run with its tuple, its place in sets, and a dictionary of children, which most runs have."""


class Piece(NamedTuple):
    """Blocks as `PrefixIndex.stored` takes them: each follows the one before, the first one `parent`, where `group` is
    None; states of a group that is kept apart otherwise."""

    hashes: tuple[int, ...]
    parent: int | None
    tier: str
    group: int | None


def pieces(keeper: Keeper) -> Iterator[Piece]:
    """All that the index has seen the blocks of; those nearer to the root first, what has no root last."""
    runs = sorted(keeper.runs, key=lambda run: (run.start < 0, run.start, run.hashes[0]))
    for run in runs:
        many = len(keeper.tiers) > 1
        for tier, plane in keeper.tiers.items():
            mask = (run.planes or {}).get(plane, 0) if many else run.mask(keeper.number)
            for low, high in _segments(mask):
                yield Piece(run.hashes[low:high], run.hashes[low - 1] if low else run.above, tier, None)
        for group, tiers in keeper.states.items():
            for tier, plane in tiers.items():
                mask = (run.planes or {}).get(plane, 0)
                if mask:
                    yield Piece(tuple(run.hashes[at] for at in numbers_of(mask)), None, tier, group)


def size_bytes(runs_of: dict[int, Run], runs: int) -> int:
    """About what the dictionary, hashes and runs take."""
    return sys.getsizeof(runs_of) + BLOCK_HEAP_BYTES * len(runs_of) + RUN_HEAP_BYTES * runs


def _segments(mask: int) -> Iterator[tuple[int, int]]:
    """[low, high) of each stretch of bits that are set."""
    low = 0
    while mask >> low:
        low += ((mask >> low) & -(mask >> low)).bit_length() - 1
        high = low
        while mask >> high & 1:
            high += 1
        yield low, high
        low = high
