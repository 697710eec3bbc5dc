"""What the two ends of a KV transfer say to each other, version 1: shapes, kinds and bounds.

It knows fields, not their order in time nor how frames carry them (see `docs/wire.md`). Bodies are MessagePack maps
tagged by `t`: an unknown field is ignored, an unknown tag refused. DATA heads and extents are arrays, because there
are many.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.transfer.extent import Extent

VERSION = 1
MAX_CONNECTIONS = 64
"""Connections of one transfer to one sender."""

MAX_HAVE = 4096
"""Extents in a HELLO. What is left out merely comes again."""

KIB, MIB = 1 << 10, 1 << 20

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Name = Annotated[str, Meta(max_length=512)]
Text = Annotated[str, Meta(max_length=4096)]


class Kind(IntEnum):
    """What a frame carries."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    DATA = 4
    COMPLETE = 5
    LANDED = 6
    APPLIED = 7
    CANCEL = 8
    PING = 9
    PONG = 10


MAX_BODY_BYTES = {
    Kind.HELLO: 256 * KIB,
    Kind.WELCOME: 4 * KIB,
    Kind.REFUSE: 256 * KIB,
    Kind.DATA: 2 * KIB,
    Kind.COMPLETE: 4 * KIB,
    Kind.LANDED: 4 * KIB,
    Kind.APPLIED: 4 * KIB,
    Kind.CANCEL: 32 * KIB,
    Kind.PING: 4 * KIB,
    Kind.PONG: 4 * KIB,
}
"""Largest body (for DATA: head) of a frame, checked before memory is taken."""

MAX_PAYLOAD_BYTES = 32 * MIB
"""Largest payload of a DATA frame; other kinds have none."""


class ExtentBody(msgspec.Struct, frozen=True, array_like=True):
    """An `Extent`, final."""

    layer: Count
    part: Name
    start: Count
    stop: Count
    first_head: Count
    stop_head: Count

    def extent(self) -> Extent:
        """As core has it."""
        return Extent(self.layer, self.part, self.start, self.stop, (self.first_head, self.stop_head))


def extent_body(extent: Extent) -> ExtentBody:
    """As the wire has it."""
    return ExtentBody(extent.layer, extent.part, extent.start, extent.stop, *extent.heads)


class DataHead(msgspec.Struct, frozen=True, array_like=True):
    """Which extent a DATA frame's payload is."""

    layer: Count
    part: Name
    start: Count
    stop: Count
    first_head: Count
    stop_head: Count
    dtype: Name
    state: bool
    final: bool
    more: bool = False
    """Whether more was waiting to leave when this left: what tells a busy line from a busy engine."""

    def extent(self) -> Extent:
        """As core has it."""
        return Extent(self.layer, self.part, self.start, self.stop, (self.first_head, self.stop_head), self.final)


def data_head(part: Part, extent: Extent, more: bool = False) -> DataHead:
    """The head for `extent` of `part`."""
    state = part.kind is PartKind.STATE
    first, stop = extent.heads
    return DataHead(
        extent.layer, extent.part, extent.start, extent.stop, first, stop, part.dtype, state, extent.final, more
    )


class PartBody(msgspec.Struct, frozen=True, array_like=True):
    """A `Part`."""

    layer: Count
    name: Name
    kind: Name
    shape: Annotated[list[Count], Meta(min_length=1, max_length=8)]
    dtype: Name
    window: Count
    sharded: bool


class LayoutBody(msgspec.Struct, frozen=True, array_like=True):
    """A `KVLayout`. Its canonical MessagePack is what fingerprints are taken of."""

    revision: Text
    parts: list[PartBody]


class Hello(msgspec.Struct, frozen=True, tag_field="t", tag="hello"):
    """The first frame of a transfer on a connection, from the side that dials."""

    version: Count
    ticket: Text
    transfer: Name
    session: Name
    receiver: Name
    connection: Annotated[int, Meta(ge=0, lt=MAX_CONNECTIONS)]
    connections: Annotated[int, Meta(ge=1, le=MAX_CONNECTIONS)]
    layout: Name
    length: Count
    held: Count
    direction: Name = "to-dialler"
    have: Annotated[list[ExtentBody], Meta(max_length=MAX_HAVE)] = []
    landed: bool = False


class Welcome(msgspec.Struct, frozen=True, tag_field="t", tag="welcome", omit_defaults=True):
    """The sender takes this connection. `round` counts its welcomes of the session, from 1. `cached`: tokens that the
    sender did not compute for this transfer, but had kept."""

    version: Count
    epoch: Count
    session: Name
    round: Count
    lease_ms: Annotated[int, Meta(ge=1, lt=1 << 40)]
    cached: Count = 0


class Refuse(msgspec.Struct, frozen=True, tag_field="t", tag="refuse", omit_defaults=True):
    """The listener does not take this connection, and closes it. For `layout`: its own, so that the dialler can say
    what differs."""

    code: Name
    detail: Text
    layout: LayoutBody | None = None


class Complete(msgspec.Struct, frozen=True, tag_field="t", tag="complete"):
    """The sender has put everything (`chunks`, `bytes` in all); nothing more follows here in this round."""

    round: Count
    chunks: Count
    bytes: Count


class Landed(msgspec.Struct, frozen=True, tag_field="t", tag="landed"):
    """Everything is with the receiver, verified. What moved, and in how long."""

    bytes_moved: Count
    moving_ns: Count


class Applied(msgspec.Struct, frozen=True, tag_field="t", tag="applied"):
    """The engine has it. The transfer is over on this connection, which may serve another."""


class Cancel(msgspec.Struct, frozen=True, tag_field="t", tag="cancel"):
    """Whoever says it has stopped the transfer, and closes the connection."""

    code: Name
    detail: Text


class Ping(msgspec.Struct, frozen=True, tag_field="t", tag="ping"):
    """Are you there? From the side that dialled."""


class Pong(msgspec.Struct, frozen=True, tag_field="t", tag="pong"):
    """Yes."""


Message = Hello | Welcome | Refuse | Complete | Landed | Applied | Cancel | Ping | Pong

KIND_OF: dict[type, Kind] = {
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Refuse: Kind.REFUSE,
    Complete: Kind.COMPLETE,
    Landed: Kind.LANDED,
    Applied: Kind.APPLIED,
    Cancel: Kind.CANCEL,
    Ping: Kind.PING,
    Pong: Kind.PONG,
}


def clipped(text: str, limit: int = 1024) -> str:
    """`text` as it may go into a `detail`."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
