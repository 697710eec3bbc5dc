"""The numbers of a pool's blocks that nobody holds.

It knows numbers; it does not know what blocks are for. A number that was never taken costs no memory.
"""

from __future__ import annotations

from prfaas.core.errors import InvariantError


class FreeBlocks:
    """Numbers 0 to `capacity` - 1; taken and given back in lists, the last given first taken. `count`: how many are
    free."""

    __slots__ = ("_back", "_fresh", "capacity", "count")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.count = capacity
        self._back: list[int] = []
        self._fresh = 0

    def take(self, count: int) -> list[int]:
        """`count` free numbers, which are no longer free. Raises InvariantError when there are fewer."""
        back = self._back
        left = len(back) - count
        if count > self.count:
            raise InvariantError(f"{count} blocks wanted, {self.count} are free")
        self.count -= count
        if left >= 0:
            taken = back[left:]
            del back[left:]
            return taken
        fresh = self._fresh
        self._fresh = fresh - left
        taken = [*back, *range(fresh, fresh - left)]
        back.clear()
        return taken

    def give(self, numbers: list[int]) -> None:
        """`numbers` are free again."""
        self._back += numbers
        self.count += len(numbers)

    def numbers(self) -> list[int]:
        """All free numbers, in no order that means anything."""
        return [*self._back, *range(self._fresh, self.capacity)]
