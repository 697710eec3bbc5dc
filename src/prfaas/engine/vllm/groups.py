"""vLLM's cache groups in logical rows: which blocks hold which rows, and which block holds a state.

It knows block tables (one list of block ids a group, 0 where there is none) and rows; it does not know tensors, layers
or requests. Pure, and the same in the scheduler and in the workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import InvariantError

NULL_BLOCK = 0
"""vLLM's block that belongs to nobody: out of a window, or a state that is not kept."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Token rows [start, stop) of one group. Row r is row `r % block_tokens` of `blocks[r // block_tokens - start //
    block_tokens]`."""

    start: int
    stop: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a block table. `window`: rows that are kept (WINDOW). `positional`: a state's block stands
    where its last token's would (vLLM's modes align and all); else there is one."""

    kind: PartKind
    block_tokens: int
    window: int = 0
    positional: bool = True

    def first_row(self, length: int) -> int:
        """The first row that resuming at `length` tokens needs."""
        return max(0, length - self.window) if self.kind is PartKind.WINDOW else 0

    def rows(self, table: Sequence[int], start: int, stop: int, length: int) -> Rows | None:
        """What of rows [start, stop) resuming at `length` needs, and where it is. None when that is nothing.

        Raises InvariantError when the table has no block there: what it holds must not be guessed.
        """
        start = max(start, self.first_row(length))
        if self.kind is PartKind.STATE or start >= stop:
            return None
        first, last = start // self.block_tokens, (stop - 1) // self.block_tokens
        blocks = tuple(table[first : last + 1])
        if len(blocks) != last + 1 - first or NULL_BLOCK in blocks:
            raise InvariantError(f"rows {start} to {stop} of {length} are not all in the block table {list(table)}")
        return Rows(start, stop, blocks)

    def state_block(self, table: Sequence[int], length: int) -> int | None:
        """The block with the state after exactly `length` tokens; None when the group has no states."""
        if self.kind is not PartKind.STATE:
            return None
        at = (length - 1) // self.block_tokens if self.positional else 0
        if at >= len(table) or table[at] == NULL_BLOCK:
            raise InvariantError(f"the state at {length} tokens is not in the block table {list(table)}")
        return table[at]

    def torn_block(self, table: Sequence[int], held: int, length: int) -> int | None:
        """The block that has only its last rows after a load from `held` to `length`, since the window begins in it.

        vLLM takes it for whole, and must not find it again for another request.
        """
        first = self.first_row(length)
        if first <= held or first % self.block_tokens == 0:
            return None
        return table[first // self.block_tokens]
