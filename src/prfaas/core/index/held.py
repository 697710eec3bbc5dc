"""What one place holds, read back from the index as pieces, and what the index weighs.

It knows runs and keepers; it does not know who asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import NamedTuple

from prfaas.core.index.places import Keeper
from prfaas.core.index.runs import Run, numbers_of, ones_from_0

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


def pieces(keeper: Keeper, after: int, most_hashes: int | None) -> tuple[list[Piece], int | None]:
    """What it holds of runs whose first hash is above `after`, in that order, and the last one's if there are more."""
    runs = {run.hashes[0]: run for run in keeper.runs}
    firsts = [first for first in runs if first > after]
    firsts.sort()
    found: list[Piece] = []
    hashes = 0
    for first in firsts:
        of_run = list(_of_run(keeper, runs[first]))
        found += of_run
        hashes += sum(len(piece.hashes) for piece in of_run)
        if most_hashes is not None and hashes >= most_hashes and first != firsts[-1]:
            return found, first
    return found, None


def _of_run(keeper: Keeper, run: Run) -> Iterator[Piece]:
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
    while mask:
        low += (mask & -mask).bit_length() - 1
        mask >>= (mask & -mask).bit_length() - 1
        count = ones_from_0(mask)
        yield low, low + count
        low, mask = low + count, mask >> count
