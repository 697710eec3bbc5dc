"""What a prefix pool must know of a model: how long a block is and what a snapshot takes.

It knows sizes; it does not know blocks, requests or engines.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.errors import LocalError

SNAPSHOT_TOKENS = 64
"""Reusable snapshots sit on multiples of this, or of what also makes them multiples of a block."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """`block_tokens`: tokens of all block-level groups (full attention, MLA) in one block.

    `snapshot_blocks`: blocks that the request-level state (recurrent state, last windows) at one length takes; 0 for a
    model that has none, which resumes at every block. `snapshot_tokens`: snapshots are kept at multiples of this,
    itself a multiple of `block_tokens`, so that what a snapshot needs is whole blocks; 0 stands for the least that is
    allowed. `window_tokens`: rows of the longest window, 0 where there is none.
    """

    block_tokens: int
    snapshot_blocks: int = 0
    snapshot_tokens: int = 0
    window_tokens: int = 0

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise LocalError(f"block_tokens: got {self.block_tokens}; expected at least 1")
        if self.snapshot_blocks < 0:
            raise LocalError(f"snapshot_blocks: got {self.snapshot_blocks}; expected at least 0")
        if self.snapshot_tokens == 0:
            object.__setattr__(self, "snapshot_tokens", math.lcm(self.block_tokens, SNAPSHOT_TOKENS))
        if self.snapshot_tokens < 0 or self.snapshot_tokens % self.block_tokens:
            raise LocalError(
                f"snapshot_tokens: got {self.snapshot_tokens}; expected a multiple of block_tokens, {self.block_tokens}"
            )

    @property
    def stateful(self) -> bool:
        """Whether the model resumes only where a snapshot is."""
        return self.snapshot_blocks > 0

    @classmethod
    def of_layout(cls, layout: KVLayout, block_tokens: int) -> PoolSpec:
        """The spec of `layout`: a snapshot is every STATE and the last rows of every WINDOW, in blocks rounded up.

        Raises LocalError for a layout of which nothing grows with the sequence: its blocks would weigh nothing.
        """
        block = block_bytes(layout, block_tokens)
        if block == 0:
            raise LocalError("layout: got no part of kind tokens; expected at least one")
        snapshot = sum(
            part.unit_bytes * (part.window if part.kind is PartKind.WINDOW else 1)
            for part in layout.parts
            if part.kind is not PartKind.TOKENS
        )
        return cls(block_tokens, -(-snapshot // block), window_tokens=max(part.window for part in layout.parts))


def block_bytes(layout: KVLayout, block_tokens: int) -> int:
    """Bytes of one block of `block_tokens` tokens: all parts of kind TOKENS."""
    return block_tokens * sum(part.unit_bytes for part in layout.parts if part.kind is PartKind.TOKENS)
