"""Extents: what crosses the wire, in logical coordinates; and coverage: what of a transfer has arrived.

Never block numbers: engines map extents to their own blocks, so block sizes and chunking may differ on the two sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby

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


@dataclass(slots=True)
class Coverage:
    """What of the needed extents has arrived: per part and head, merged token intervals. Order does not matter.

    Heads are booked one by one, so that overlapping head ranges of an odd sender never count twice.
    """

    layout: KVLayout
    length: int
    held: int = 0
    _parts: dict[PartKey, Part] = field(default_factory=dict)
    _wanted: dict[PartKey, Extent] = field(default_factory=dict)
    _have: dict[PartKey, list[list[Span]]] = field(default_factory=dict)
    _missing: dict[PartKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts = {(p.layer, p.name): p for p in self.layout.parts}
        for extent in needed(self.layout, self.length, self.held):
            key = (extent.layer, extent.part)
            self._wanted[key] = extent
            self._have[key] = [[] for _ in range(extent.heads[1])]
            self._missing[key] = extent_bytes(self._parts[key], extent)

    @property
    def missing_bytes(self) -> int:
        """Bytes still to come; 0 means complete, every group included."""
        return sum(self._missing.values())

    @property
    def complete(self) -> bool:
        """Whether every part, those without attention too, is whole."""
        return not any(self._missing.values())

    def fits(self, extent: Extent) -> Part | None:
        """The part of `extent` if it lies inside what this transfer needs, else None."""
        key = (extent.layer, extent.part)
        wanted = self._wanted.get(key)
        if wanted is None or not 0 <= extent.heads[0] < extent.heads[1] <= wanted.heads[1]:
            return None
        part = self._parts[key]
        if part.kind is PartKind.STATE:
            inside = extent.start == 0 and extent.stop == self.length
        else:
            inside = wanted.start <= extent.start < extent.stop <= wanted.stop
        return part if inside else None

    def add(self, extent: Extent) -> bool:
        """Book `extent` as arrived. False when it brings nothing new (a duplicate). It must fit and be final."""
        key = (extent.layer, extent.part)
        part, rows = self._parts[key], 0
        for head in range(*extent.heads):
            spans = self._have[key][head]
            new = extent.tokens - sum(max(0, min(extent.stop, b) - max(extent.start, a)) for a, b in spans)
            if new > 0:
                self._have[key][head] = _merged([*spans, (extent.start, extent.stop)])
                rows += 1 if part.kind is PartKind.STATE else new
        self._missing[key] -= rows * (part.unit_bytes // part.shape[0])
        return rows > 0

    def have(self) -> tuple[Extent, ...]:
        """The receiver's map of what it has, for a resume: neighbouring heads with equal spans are one extent."""
        found: list[Extent] = []
        for (layer, name), heads in self._have.items():
            for same, run in groupby(range(len(heads)), key=lambda head: heads[head]):
                which = list(run)
                found += [Extent(layer, name, a, b, (which[0], which[-1] + 1)) for a, b in same]
        return tuple(found)


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return merged
