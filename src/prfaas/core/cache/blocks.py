"""The numbers of a pool's blocks that nobody holds.

It knows numbers; it does not know what blocks are for. A number that was never taken costs no memory.
"""

from __future__ import annotations

from prfaas.core.errors import InvariantError


class FreeBlocks:
    """Numbers 0 to `capacity` - 1; taken and given back in lists, the last given first taken."""

    __slots__ = ("_back", "_fresh", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._back: list[int] = []
        self._fresh = 0

    def __len__(self) -> int:
        """How many are free."""
        return len(self._back) + self.capacity - self._fresh

    def take(self, count: int) -> list[int]:
        """`count` free numbers, which are no longer free. Raises InvariantError when there are fewer."""
        back = self._back
        left = len(back) - count
        if left >= 0:
            taken = back[left:]
            del back[left:]
            return taken
        fresh = self._fresh
        if fresh - left > self.capacity:
            raise InvariantError(f"{count} blocks wanted, {len(self)} are free")
        self._fresh = fresh - left
        taken = [*back, *range(fresh, fresh - left)]
        back.clear()
        return taken

    def give(self, numbers: list[int]) -> None:
        """`numbers` are free again."""
        self._back += numbers

    def numbers(self) -> list[int]:
        """All free numbers, in no order that means anything."""
        return [*self._back, *range(self._fresh, self.capacity)]
