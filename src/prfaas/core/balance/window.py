"""What came and what ended in the last minutes: lengths as a histogram that forgets.

It knows times, tokens and counts; it does not know what a length costs. A ring of slots, each a part of the window;
whole slots are forgotten, so that between `span` and `span` plus one slot is remembered. Everything is an integer and
is taken away exactly as it was added: nothing drifts. Memory: at most `slots` times the number of bins.
"""

from __future__ import annotations

from collections import deque

from prfaas.core.balance.bins import BINS, bin_of, top_of
from prfaas.core.errors import InvariantError
from prfaas.core.throughput.lengths import Lengths


class _Slot:
    """`lengths`: by bin, [requests, uncached tokens, context tokens]. `ended`: answers, their tokens, squares."""

    __slots__ = ("began_ns", "ended", "lengths")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = began_ns
        self.lengths: dict[int, list[int]] = {}
        self.ended = [0, 0, 0]


class Window:
    """The last `slots` parts of `slot_ns` each, and the part that is under way. Time never runs backwards."""

    __slots__ = ("_all", "_ended", "_last", "_old", "_until_ns", "slot_ns", "slots")

    def __init__(self, slot_ns: int, slots: int) -> None:
        if slot_ns < 1 or slots < 1:
            raise InvariantError(f"a window of {slots} slots of {slot_ns} ns")
        self.slot_ns, self.slots = slot_ns, slots
        self._old: deque[_Slot] = deque()
        self._last: _Slot | None = None
        self._until_ns = 0
        self._all: dict[int, list[int]] = {}
        self._ended = [0, 0, 0]

    def arrived(self, now_ns: int, uncached: int, context: int) -> None:
        """A request came: `uncached` tokens to compute of a prompt of `context`."""
        slot = self._last if now_ns < self._until_ns and self._last else self._turn(now_ns)
        at = bin_of(uncached)
        row = slot.lengths.get(at)
        if row is None:
            row = slot.lengths[at] = [0, 0, 0]
        row[0] += 1
        row[1] += uncached
        row[2] += context

    def ended(self, now_ns: int, output: int) -> None:
        """A request ended, after `output` tokens."""
        slot = self._last if now_ns < self._until_ns and self._last else self._turn(now_ns)
        ended = slot.ended
        ended[0] += 1
        ended[1] += output
        ended[2] += output * output

    def advance(self, now_ns: int) -> None:
        """Forget what is too old by now."""
        if now_ns >= self._until_ns or self._last is None:
            self._turn(now_ns)

    @property
    def requests(self) -> int:
        """How many requests are remembered."""
        return sum(row[0] for row in self._rows().values())

    def outputs(self) -> tuple[int, int, int]:
        """Of the answers remembered: how many, their tokens, and the sum of the squares of these."""
        now = self._last.ended if self._last else [0, 0, 0]
        count, tokens, squares = (a + b for a, b in zip(self._ended, now, strict=True))
        return count, tokens, squares

    def lengths(self, most: int = BINS) -> tuple[Lengths, tuple[float, ...]] | None:
        """The distribution of uncached lengths in at most `most` bins, and each bin's mean context. None: no request.

        Neighbours are joined evenly where there are more, so that no bin gets much wider than others.
        """
        rows = sorted(self._rows().items())
        if not rows:
            return None
        step = -(-len(rows) // most)
        groups = [rows[at : at + step] for at in range(0, len(rows), step)]
        counts = [sum(row[0] for _, row in group) for group in groups]
        total = sum(counts)
        tokens = (sum(row[1] for _, row in group) / n for group, n in zip(groups, counts, strict=True))
        context = (sum(row[2] for _, row in group) / n for group, n in zip(groups, counts, strict=True))
        tops = (top_of(group[-1][0]) for group in groups)
        return Lengths(tuple(tops), tuple(tokens), tuple(n / total for n in counts)), tuple(context)

    def validate(self) -> None:
        """Raises InvariantError when the sums are not those of the slots, or too much is kept."""
        sums: dict[int, list[int]] = {}
        ended = [0, 0, 0]
        for slot in self._old:
            _add(sums, slot.lengths)
            ended = [a + b for a, b in zip(ended, slot.ended, strict=True)]
        if sums != self._all or ended != self._ended or len(self._old) > self.slots:
            raise InvariantError(f"sums of {len(self._old)} slots: {self._all}, {self._ended}; are {sums}, {ended}")

    def _rows(self) -> dict[int, list[int]]:
        rows = {at: list(row) for at, row in self._all.items()}
        if self._last:
            _add(rows, self._last.lengths)
        return rows

    def _turn(self, now_ns: int) -> _Slot:
        """A new slot, on the grid of slots; the last one joins the old, and the oldest go."""
        if self._last:
            self._old.append(self._last)
            _add(self._all, self._last.lengths)
            self._ended = [a + b for a, b in zip(self._ended, self._last.ended, strict=True)]
        began_ns = now_ns - now_ns % self.slot_ns
        while self._old and self._old[0].began_ns < began_ns - self.slots * self.slot_ns:
            gone = self._old.popleft()
            _take(self._all, gone.lengths)
            self._ended = [a - b for a, b in zip(self._ended, gone.ended, strict=True)]
        self._last = _Slot(began_ns)
        self._until_ns = began_ns + self.slot_ns
        return self._last


def _add(to: dict[int, list[int]], rows: dict[int, list[int]]) -> None:
    for at, (count, tokens, context) in rows.items():
        row = to.setdefault(at, [0, 0, 0])
        row[0] += count
        row[1] += tokens
        row[2] += context


def _take(of: dict[int, list[int]], rows: dict[int, list[int]]) -> None:
    for at, (count, tokens, context) in rows.items():
        row = of[at]
        row[0] -= count
        row[1] -= tokens
        row[2] -= context
        if not row[0]:
            del of[at]
