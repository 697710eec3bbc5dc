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
from prfaas.core.transfer.extent import Coverage, Extent, PartKey, extent_bytes, row_bytes
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
    part: Part
    view: memoryview
    direct: bool
    stream: Stream


class Landing:
    """The buffers of one transfer. `coverage` is the machine's: read here, never booked."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self._buffers: dict[PartKey, bytearray] = {}
        self._claims: dict[int, _Claim] = {}

    def place(self, lane: int, head: DataHead, size: int, stream: Stream) -> memoryview | None:
        """Where lane's next payload goes; None when it is not wanted (`settle` then says why)."""
        self._claims.pop(lane, None)
        extent = head.extent()
        part = self._wanted(head, size)
        if part is None or not extent.final or self.coverage.holds(extent):
            return None
        view = self._place_of(part, extent)
        taken = self.coverage.touches(extent) or any(_overlap(c.extent, extent) for c in self._claims.values())
        if view is None or taken:
            claim = _Claim(extent, part, memoryview(bytearray(size)), False, stream)
        else:
            claim = _Claim(extent, part, view, True, stream)
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
            if self._wanted(data.head, data.size) is None:
                raise ProtocolError("extent", f"not of this transfer: {data.head}, {data.size} bytes")
            return None
        if not claim.direct:
            for other in self._claims.values():
                if other.direct and _overlap(other.extent, claim.extent):
                    self._move_away(other)
            self._scatter(claim)
        return claim.extent

    def drop(self, lane: int) -> None:
        """Lane's payload will not become whole."""
        self._claims.pop(lane, None)

    def hand_over(self) -> LandedKV:
        """The buffers; they are the caller's now."""
        parts, self._buffers = self._buffers, {}
        return LandedKV(self.coverage.length, self.coverage.held, parts)

    def clear(self) -> None:
        """Drop everything."""
        self._buffers.clear()
        self._claims.clear()

    def _wanted(self, head: DataHead, size: int) -> Part | None:
        extent = head.extent()
        part = self.coverage.fits(extent)
        if part is None or part.dtype != head.dtype or (part.kind is PartKind.STATE) != head.state:
            return None
        return part if extent_bytes(part, extent) == size else None

    def _buffer(self, part: Part) -> bytearray:
        key = (part.layer, part.name)
        found = self._buffers.get(key)
        if found is None:
            rows = 1 if part.kind is PartKind.STATE else self.coverage.length - self.coverage.first_row(part)
            found = self._buffers[key] = bytearray(rows * part.unit_bytes)
        return found

    def _place_of(self, part: Part, extent: Extent) -> memoryview | None:
        size = extent_bytes(part, extent)
        if part.kind is PartKind.STATE:
            offset = extent.heads[0] * row_bytes(part)
        elif extent.heads == (0, part.shape[0]):
            offset = (extent.start - self.coverage.first_row(part)) * part.unit_bytes
        else:
            return None
        return memoryview(self._buffer(part))[offset : offset + size]

    def _move_away(self, claim: _Claim) -> None:
        aside = memoryview(bytearray(claim.view.nbytes))
        here = claim.stream.received
        aside[:here] = claim.view[:here]
        claim.stream.redirect(aside)
        claim.view, claim.direct = aside, False

    def _scatter(self, claim: _Claim) -> None:
        whole = self._place_of(claim.part, claim.extent)
        if whole is not None:
            whole[:] = claim.view
            return
        per_head, unit = row_bytes(claim.part), claim.part.unit_bytes
        first, last = (head * per_head for head in claim.extent.heads)
        width = last - first
        buffer = memoryview(self._buffer(claim.part))
        at = (claim.extent.start - self.coverage.first_row(claim.part)) * unit + first
        for row in range(claim.extent.tokens):
            buffer[at : at + width] = claim.view[row * width : (row + 1) * width]
            at += unit


def _overlap(a: Extent, b: Extent) -> bool:
    return (
        (a.layer, a.part) == (b.layer, b.part)
        and max(a.start, b.start) < min(a.stop, b.stop)
        and max(a.heads[0], b.heads[0]) < min(a.heads[1], b.heads[1])
    )
