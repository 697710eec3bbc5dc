"""The one order of things to come: a heap of `(at_ns, rank, seq)` that simulator and asyncio runtime share.

It knows times and handles; it does not know what time it is, nor what the items mean. asyncio does not fire equal
deadlines in order, so both drivers take due items from here and therefore agree exactly.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True, order=True)
class Entry(Generic[T]):
    """One thing to come. Order: time in ns, then rank (smaller first), then the order in which it was added."""

    at_ns: int
    rank: int
    seq: int
    item: T = field(compare=False)
    live: bool = field(default=True, compare=False)


class Agenda(Generic[T]):
    """Things to come. Cancelled entries stay in the heap until they surface or outnumber the live ones."""

    __slots__ = ("_dead", "_heap", "_seq")

    def __init__(self) -> None:
        self._heap: list[Entry[T]] = []
        self._seq = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    def add(self, at_ns: int, item: T, rank: int = 0) -> Entry[T]:
        """Plan `item` for `at_ns`; the entry is the handle for `cancel`."""
        entry = Entry(at_ns, rank, self._seq, item)
        self._seq += 1
        heapq.heappush(self._heap, entry)
        return entry

    def cancel(self, entry: Entry[T]) -> None:
        """Take `entry` back. Cancelling twice, or after it was popped, changes nothing."""
        if not entry.live:
            return
        entry.live = False
        self._dead += 1
        if self._dead > 64 and self._dead * 2 > len(self._heap):
            self._heap = [e for e in self._heap if e.live]
            heapq.heapify(self._heap)
            self._dead = 0

    def next_at(self) -> int | None:
        """Time in ns of the earliest live entry, or None."""
        while self._heap and not self._heap[0].live:
            heapq.heappop(self._heap)
            self._dead -= 1
        return self._heap[0].at_ns if self._heap else None

    def pop_due(self, now_ns: int) -> T | None:
        """The earliest item whose time has come, removed; None when nothing is due."""
        at_ns = self.next_at()
        if at_ns is None or at_ns > now_ns:
            return None
        entry = heapq.heappop(self._heap)
        entry.live = False
        return entry.item
