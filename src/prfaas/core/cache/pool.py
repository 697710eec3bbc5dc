"""Who holds how many KV blocks of one node: admission by count.

It knows owners and counts; it does not know what is in a block. An owner is one sequence or one transfer's send side.
"""

from __future__ import annotations

from prfaas.core.errors import InvariantError


class BlockPool:
    """`capacity` equal blocks of `block_tokens` tokens each, taken by owners and given back whole."""

    __slots__ = ("_held", "_used", "block_tokens", "capacity")

    def __init__(self, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._held: dict[str, int] = {}
        self._used = 0

    @property
    def in_use(self) -> int:
        """Blocks that owners hold now."""
        return self._used

    def blocks_for(self, tokens: int) -> int:
        """Blocks that a sequence of `tokens` tokens takes, the last one perhaps in part."""
        return -(-tokens // self.block_tokens)

    def can_ever(self, tokens: int) -> bool:
        """Whether `tokens` tokens would fit an empty pool."""
        return self.blocks_for(tokens) <= self.capacity

    def take(self, owner: str, tokens: int) -> bool:
        """Blocks for `tokens` tokens to `owner`; False, and nothing taken, when there is no room now.

        Raises InvariantError when `owner` holds blocks already.
        """
        if owner in self._held:
            raise InvariantError(f"{owner} holds {self._held[owner]} blocks already")
        blocks = self.blocks_for(tokens)
        if self._used + blocks > self.capacity:
            return False
        self._held[owner] = blocks
        self._used += blocks
        return True

    def give_back(self, owner: str) -> int:
        """All blocks of `owner` are free again; how many. An owner that holds none gives back 0."""
        blocks = self._held.pop(owner, 0)
        self._used -= blocks
        return blocks

    def validate(self) -> None:
        """Raises InvariantError when the books do not balance."""
        if self._used != sum(self._held.values()) or not 0 <= self._used <= self.capacity:
            raise InvariantError(f"{self._used} of {self.capacity} blocks booked, owners hold {self._held}")
