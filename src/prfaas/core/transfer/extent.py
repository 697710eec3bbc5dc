"""Extents: what crosses the wire, in logical coordinates; and coverage: what of a transfer has arrived.

Never block numbers: engines map extents to their own blocks, so block sizes and chunking may differ on the two sides.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum

from prfaas.core.cache.layout import KVLayout, Part, PartKind

PartKey = tuple[int, str]
Span = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class Extent:
    """A piece of one part: token rows [start, stop), or (STATE) the value at exactly `stop` tokens, start = 0.

    `heads` is the half-open range of heads carried, (0, shape[0]) when it is all of them. The bytes are row-major:
    (tokens, heads, width) for rows, the part's own shape for a state. `final`: no later extent supersedes it.
    """

    layer: int
    part: str
    start: int
    stop: int
    heads: tuple[int, int]
    final: bool = True

    @property
    def tokens(self) -> int:
        """Token rows covered."""
        return self.stop - self.start


def extent_bytes(part: Part, extent: Extent) -> int:
    """Bytes that `extent` of `part` must have."""
    heads = extent.heads[1] - extent.heads[0]
    per_unit = part.unit_bytes // part.shape[0] * heads
    return per_unit if part.kind is PartKind.STATE else per_unit * extent.tokens


def needed(layout: KVLayout, length: int, held: int = 0) -> tuple[Extent, ...]:
    """The extents that make a receiver that holds `held` tokens complete at `length` tokens (the increment)."""
    if length <= held:
        return ()
    wanted = []
    for part in layout.parts:
        start = 0 if part.kind is PartKind.STATE else max(held, part.first_row(length))
        wanted.append(Extent(part.layer, part.name, start, length, (0, part.shape[0])))
    return tuple(wanted)


def row_bytes(part: Part) -> int:
    """Bytes of one head's share of one unit (a token's row, or the whole state)."""
    return part.unit_bytes // part.shape[0]


class Arrived(Enum):
    """How much of an extent is here."""

    NONE = 0
    SOME = 1
    ALL = 2


@dataclass(slots=True)
class Coverage:
    """What of the needed extents has arrived: per part, runs of heads with the same merged token intervals.

    Order does not matter. Every head is accounted for on its own, so that overlapping head ranges never count twice.
    """

    layout: KVLayout
    length: int
    held: int = 0
    missing_bytes: int = 0
    """Bytes still to come; 0 means complete, every group included."""
    _parts: dict[PartKey, Part] = field(default_factory=dict)
    _wanted: dict[PartKey, Extent] = field(default_factory=dict)
    _have: dict[PartKey, list[_Run]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts = {(p.layer, p.name): p for p in self.layout.parts}
        self.missing_bytes = 0
        for extent in needed(self.layout, self.length, self.held):
            key = (extent.layer, extent.part)
            self._wanted[key] = extent
            self._have[key] = [(0, extent.heads[1], ())]
            self.missing_bytes += extent_bytes(self._parts[key], extent)

    @property
    def complete(self) -> bool:
        """Whether every part, those without attention too, is whole."""
        return self.missing_bytes == 0

    def fits(self, extent: Extent) -> Part | None:
        """The part of `extent` if it lies inside what this transfer needs, else None."""
        part = self._parts.get((extent.layer, extent.part))
        wanted = self._wanted.get((extent.layer, extent.part))
        if part is None or wanted is None or not 0 <= extent.heads[0] < extent.heads[1] <= wanted.heads[1]:
            return None
        if part.kind is PartKind.STATE:
            inside = extent.start == 0 and extent.stop == self.length
        else:
            inside = wanted.start <= extent.start < extent.stop <= wanted.stop
        return part if inside else None

    def first_row(self, part: Part) -> int:
        """The row at which a receiver's buffer for `part` starts (0 for a state)."""
        wanted = self._wanted.get((part.layer, part.name))
        return wanted.start if wanted else 0

    def add(self, extent: Extent) -> bool:
        """Book `extent` as arrived. False when it brings nothing new (a duplicate). It must fit and be final."""
        key = (extent.layer, extent.part)
        part, units, runs = self._parts[key], 0, list[_Run]()
        for lo, hi, spans in self._have[key]:
            a, b = max(lo, extent.heads[0]), min(hi, extent.heads[1])
            new = extent.tokens - _inside(spans, extent) if a < b else 0
            if new == 0:
                runs.append((lo, hi, spans))
                continue
            units += (b - a) * (1 if part.kind is PartKind.STATE else new)
            runs += [(lo, a, spans)] if lo < a else []
            runs.append((a, b, _with(spans, extent.start, extent.stop)))
            runs += [(b, hi, spans)] if b < hi else []
        if units:
            self._have[key] = _joined(runs)
            self.missing_bytes -= units * row_bytes(part)
        return units > 0

    def arrived(self, extent: Extent) -> Arrived:
        """How much of `extent` is here already. It must fit."""
        h0, h1 = extent.heads
        seen = set()
        for lo, hi, spans in self._have[extent.layer, extent.part]:
            if lo < h1 and h0 < hi:
                here = _inside(spans, extent)
                seen.add(Arrived.ALL if here == extent.tokens else Arrived.SOME if here else Arrived.NONE)
        return seen.pop() if len(seen) == 1 else Arrived.SOME

    def have(self) -> tuple[Extent, ...]:
        """The receiver's map of what it has, for a resume: neighbouring heads with equal spans are one extent."""
        return tuple(
            Extent(layer, name, a, b, (lo, hi))
            for (layer, name), runs in self._have.items()
            for lo, hi, spans in runs
            for a, b in spans
        )


_Run = tuple[int, int, tuple[Span, ...]]
"""Heads [lo, hi) and the token intervals that each of them has."""


def _inside(spans: tuple[Span, ...], extent: Extent) -> int:
    """Tokens of `extent` within `spans`, which are sorted and apart."""
    if not spans:
        return 0
    found = 0
    for at in range(max(0, bisect_left(spans, (extent.start,)) - 1), len(spans)):
        start, stop = spans[at]
        if start >= extent.stop:
            break
        found += max(0, min(stop, extent.stop) - max(start, extent.start))
    return found


def _with(spans: tuple[Span, ...], start: int, stop: int) -> tuple[Span, ...]:
    """`spans` and [start, stop), joined where they meet."""
    first = bisect_left(spans, (start,))
    if first > 0 and spans[first - 1][1] >= start:
        first -= 1
    last = first
    while last < len(spans) and spans[last][0] <= stop:
        start, stop = min(start, spans[last][0]), max(stop, spans[last][1])
        last += 1
    return (*spans[:first], (start, stop), *spans[last:])


def _joined(runs: list[_Run]) -> list[_Run]:
    joined: list[_Run] = []
    for lo, hi, spans in runs:
        if joined and joined[-1][2] == spans:
            joined[-1] = (joined[-1][0], hi, spans)
        else:
            joined.append((lo, hi, spans))
    return joined
