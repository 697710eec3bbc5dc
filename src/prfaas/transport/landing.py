"""Where arriving KV lands: one buffer a part, and which of it a chunk may be received into before it is verified.

It knows extents, layouts and memory; it does not know connections. A chunk goes straight into its place when that is
one piece, nothing of it is booked, and no other chunk is on its way there; else into a buffer of its own until it is
verified. So unverified bytes never touch booked ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.errors import ProtocolError
from prfaas.core.transfer.extent import Arrived, Coverage, Extent, PartKey, extent_bytes, row_bytes
from prfaas.transport.base import LandedKV
from prfaas.wire.frame import Data
from prfaas.wire.messages import DataHead


class Stream(Protocol):
    """What a payload that is on its way can be asked for (a frame decoder)."""

    @property
    def received(self) -> int:
        """Bytes of it that are here."""

    def redirect(self, target: memoryview) -> None:
        """The rest goes into `target`."""


@dataclass(slots=True)
class _Claim:
    """A chunk on its way. `direct`: its view is a piece of the part's buffer."""

    extent: Extent
    slot: _Slot
    view: memoryview
    direct: bool
    stream: Stream


class _Slot:
    """One part's buffer. Memory is taken when the first chunk comes that is not here yet."""

    __slots__ = ("_first_row", "_heads", "_per_head", "_state", "_unit", "buffer")

    def __init__(self, part: Part, first_row: int, length: int) -> None:
        self._unit, self._per_head, self._heads = part.unit_bytes, row_bytes(part), part.shape[0]
        self._first_row, self._state = first_row, part.kind is PartKind.STATE
        self.buffer = bytearray(self._unit if self._state else (length - first_row) * self._unit)

    def place_of(self, extent: Extent, size: int) -> memoryview | None:
        """The one piece that is `extent`'s place; None when it is not one piece."""
        if self._state:
            offset = extent.heads[0] * self._per_head
        elif extent.heads == (0, self._heads):
            offset = (extent.start - self._first_row) * self._unit
        else:
            return None
        return memoryview(self.buffer)[offset : offset + size]

    def scatter(self, extent: Extent, data: memoryview) -> None:
        """Copy `data` to where `extent` belongs."""
        whole = self.place_of(extent, len(data))
        if whole is not None:
            whole[:] = data
            return
        first, last = (head * self._per_head for head in extent.heads)
        width = last - first
        at = (extent.start - self._first_row) * self._unit + first
        buffer = memoryview(self.buffer)
        for row in range(extent.tokens):
            buffer[at : at + width] = data[row * width : (row + 1) * width]
            at += self._unit


class Landing:
    """The buffers of one transfer. `coverage` is the machine's: read here, never booked."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self._slots: dict[PartKey, _Slot] = {}
        self._claims: dict[int, _Claim] = {}

    def place(self, lane: int, head: DataHead, size: int, stream: Stream) -> memoryview | None:
        """Where lane's next payload goes; None when it is not wanted (`settle` then says why)."""
        self._claims.pop(lane, None)
        extent = head.extent()
        part = self._wanted(head, extent, size)
        if part is None or not extent.final:
            return None
        here = self.coverage.arrived(extent)
        if here is Arrived.ALL:
            return None
        slot = self._slot(part)
        view = slot.place_of(extent, size)
        taken = here is Arrived.SOME or any(_overlap(c.extent, extent) for c in self._claims.values())
        if view is None or taken:
            claim = _Claim(extent, slot, memoryview(bytearray(size)), False, stream)
        else:
            claim = _Claim(extent, slot, view, True, stream)
        self._claims[lane] = claim
        return claim.view

    def settle(self, lane: int, data: Data) -> Extent | None:
        """Lane's payload is whole and its checksum right: bring it to its place. Its extent, or None if there is
        nothing to book.

        Raises ProtocolError when the sender should not have sent it.
        """
        claim = self._claims.pop(lane, None)
        if claim is None:
            if data.head is None:
                raise ProtocolError("body", "the head of a DATA frame cannot be read")
            if self._wanted(data.head, data.head.extent(), data.size) is None:
                raise ProtocolError("extent", f"not of this transfer: {data.head}, {data.size} bytes")
            return None
        if not claim.direct:
            for other in self._claims.values():
                if other.direct and _overlap(other.extent, claim.extent):
                    self._move_away(other)
            claim.slot.scatter(claim.extent, claim.view)
        return claim.extent

    def drop(self, lane: int) -> None:
        """Lane's payload will not become whole."""
        self._claims.pop(lane, None)

    def hand_over(self) -> LandedKV:
        """The buffers; they are the caller's now."""
        parts = {key: slot.buffer for key, slot in self._slots.items()}
        self._slots = {}
        return LandedKV(self.coverage.length, self.coverage.held, parts)

    def clear(self) -> None:
        """Drop everything."""
        self._slots.clear()
        self._claims.clear()

    def _wanted(self, head: DataHead, extent: Extent, size: int) -> Part | None:
        part = self.coverage.fits(extent)
        if part is None or part.dtype != head.dtype or (part.kind is PartKind.STATE) != head.state:
            return None
        return part if extent_bytes(part, extent) == size else None

    def _slot(self, part: Part) -> _Slot:
        key = (part.layer, part.name)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = _Slot(part, self.coverage.first_row(part), self.coverage.length)
        return slot

    def _move_away(self, claim: _Claim) -> None:
        aside = memoryview(bytearray(claim.view.nbytes))
        here = claim.stream.received
        aside[:here] = claim.view[:here]
        claim.stream.redirect(aside)
        claim.view, claim.direct = aside, False


def _overlap(a: Extent, b: Extent) -> bool:
    return (
        (a.layer, a.part) == (b.layer, b.part)
        and max(a.start, b.start) < min(a.stop, b.stop)
        and max(a.heads[0], b.heads[0]) < min(a.heads[1], b.heads[1])
    )
