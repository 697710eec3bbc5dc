"""The numbers of a tier's free blocks, of which some are still being read: what was in them is on its way elsewhere.

It knows numbers and who reads them; it does not know what is moved where.
"""

from __future__ import annotations

from collections.abc import Iterable

from prfaas.core.cache.blocks import FreeBlocks


class ReadBlocks(FreeBlocks):
    """Free blocks, those that somebody reads among them: these are taken last, and whoever takes one must not write to
    it before it is `read`. `readers`: of each block that is being read, free or not, the moves that do."""

    __slots__ = ("_late", "readers")

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.readers: dict[int, list[int]] = {}
        self._late: dict[int, None] = {}

    @property
    def ready(self) -> int:
        """Free blocks that nobody reads."""
        return self.count - len(self._late)

    def take(self, count: int) -> list[int]:
        """`count` free numbers, as few as can be of those that somebody reads. Raises InvariantError when there are
        fewer."""
        late = count - self.ready
        if late <= 0 or count > self.count:
            return super().take(count)
        taken = super().take(count - late)
        taken += list(self._late)[:late]
        for number in taken[count - late :]:
            del self._late[number]
        self.count -= late
        return taken

    def give(self, numbers: list[int]) -> None:
        """`numbers` are free again."""
        readers = self.readers
        if not readers:
            super().give(numbers)
            return
        super().give([number for number in numbers if number not in readers])
        late = [number for number in numbers if number in readers]
        self._late.update(dict.fromkeys(late))
        self.count += len(late)

    def reads(self, move: int, numbers: Iterable[int]) -> None:
        """`move` reads `numbers` from now on."""
        for number in numbers:
            self.readers.setdefault(number, []).append(move)

    def read(self, move: int, numbers: Iterable[int]) -> None:
        """It does not any more."""
        for number in numbers:
            moves = self.readers[number]
            moves.remove(move)
            if moves:
                continue
            del self.readers[number]
            if number in self._late:
                del self._late[number]
                self._back.append(number)

    def numbers(self) -> list[int]:
        """See `FreeBlocks`."""
        return [*super().numbers(), *self._late]
