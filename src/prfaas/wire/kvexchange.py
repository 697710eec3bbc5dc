"""What heads tell each other of prefix caches: `GET /prfaas/v1/kv`, MessagePack, version 1.

It knows the shapes and their bounds; it does not know who asks when (see `docs/index.md`). It demands the secret that
our programs share.

    GET /prfaas/v1/kv?epoch=E&since=N&wait_ms=W      changes after number N of the head's incarnation E; waits until
                                                     there are any, at most W ms. Of another E, or when changes after
                                                     N are gone, the first page of a snapshot
    GET /prfaas/v1/kv?epoch=E&since=N&after=CURSOR   the snapshot's next page

Hashes are packed, 8 bytes each, little-endian. The answer names no cluster: a head speaks for its own.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, assert_never

import msgspec
from msgspec import Meta

from prfaas.core.errors import ProtocolError
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Apart, Change, Cleared, Closed, Marked, Opened, Removed, Stored
from prfaas.core.index.mirror import Page
from prfaas.core.index.places import Known, Place

PATH = "/prfaas/v1/kv"
PAGE_HASHES = 16_384
MOST_HASHES = 16 * PAGE_HASHES
"""In one change; and what a page may be over, at most."""
MAX_PAGE_BYTES = 16 << 20

Name = Annotated[str, Meta(min_length=1, max_length=64)]
Hash = Annotated[int, Meta(ge=0)]
Small = Annotated[int, Meta(ge=-(1 << 31), lt=1 << 31)]
Packed = Annotated[bytes, Meta(max_length=8 * MOST_HASHES)]
Tier = Annotated[str, Meta(max_length=64)]


class _Of(msgspec.Struct, frozen=True, array_like=True):
    node: Name
    rank: Annotated[int, Meta(ge=0, lt=1 << 16)]


class OpenedBody(_Of, frozen=True, array_like=True, tag="opened"):
    """A new incarnation of a place."""

    epoch: int
    groups: Annotated[dict[Small, Annotated[int, Meta(ge=0, lt=1 << 20)]], Meta(max_length=64)]
    known: Known


class ClosedBody(_Of, frozen=True, array_like=True, tag="closed"):
    """It is gone."""


class MarkedBody(_Of, frozen=True, array_like=True, tag="marked"):
    """How well it is known."""

    known: Known


class ApartBody(_Of, frozen=True, array_like=True, tag="apart"):
    """A group that is kept apart."""

    group: Small
    needed: Annotated[int, Meta(ge=0, lt=1 << 20)]


class StoredBody(_Of, frozen=True, array_like=True, tag="stored"):
    """Blocks that it has."""

    hashes: Packed
    parent: Hash | None
    tier: Tier = ""
    group: Small | None = None


class RemovedBody(_Of, frozen=True, array_like=True, tag="removed"):
    """Blocks that it has no more."""

    hashes: Packed
    tier: Tier | None = None
    group: Small | None = None


class ClearedBody(_Of, frozen=True, array_like=True, tag="cleared"):
    """It holds nothing any more."""


Body = OpenedBody | ClosedBody | MarkedBody | ApartBody | StoredBody | RemovedBody | ClearedBody


class PageBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """See `core.index.mirror.Page`."""

    epoch: Annotated[int, Meta(ge=1)]
    number: Annotated[int, Meta(ge=0)]
    last: Annotated[int, Meta(ge=0)]
    changes: list[Body]
    snapshot: bool = False
    first: bool = False
    after: Annotated[str, Meta(max_length=128)] = ""


_DECODER = msgspec.msgpack.Decoder(PageBody)
_ENCODER = msgspec.msgpack.Encoder()


def encode(page: Page) -> bytes:
    """`page` as it crosses."""
    changes = [_body(change) for change in page.changes]
    body = PageBody(page.epoch, page.number, page.last, changes, page.snapshot, page.first, page.after)
    return _ENCODER.encode(body)


def decode(raw: bytes, cluster: ClusterName) -> Page:
    """The page that the head of `cluster` sent. Raises ProtocolError, "kv_exchange", that says what is wrong."""
    try:
        body = _DECODER.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ProtocolError("kv_exchange", str(error)) from None
    changes = tuple(_change(one, cluster) for one in body.changes)
    return Page(body.epoch, body.number, body.last, changes, body.snapshot, body.first, body.after)


def _body(change: Change) -> Body:
    node, rank = change.place.node, change.place.rank
    match change:
        case Opened(_, epoch, groups, known):
            return OpenedBody(node, rank, epoch, dict(groups), known)
        case Closed():
            return ClosedBody(node, rank)
        case Marked(_, known):
            return MarkedBody(node, rank, known)
        case Apart(_, number, needed):
            return ApartBody(node, rank, number, needed)
        case Stored(_, hashes, parent, tier, group):
            return StoredBody(node, rank, _packed(hashes), parent, tier, group)
        case Removed(_, hashes, tiers, group):
            return RemovedBody(node, rank, _packed(hashes), tiers, group)
        case Cleared():
            return ClearedBody(node, rank)
        case _:
            assert_never(change)


def _change(body: Body, cluster: ClusterName) -> Change:
    place = Place(cluster, NodeName(body.node), body.rank)
    match body:
        case OpenedBody():
            return Opened(place, Epoch(body.epoch), body.groups, body.known)
        case ClosedBody():
            return Closed(place)
        case MarkedBody():
            return Marked(place, body.known)
        case ApartBody():
            return Apart(place, body.group, body.needed)
        case StoredBody():
            return Stored(place, _unpacked(body.hashes), body.parent, body.tier, body.group)
        case RemovedBody():
            return Removed(place, _unpacked(body.hashes), body.tier, body.group)
        case ClearedBody():
            return Cleared(place)
        case _:
            assert_never(body)


def _packed(hashes: Sequence[int]) -> bytes:
    words = array("Q", hashes)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def _unpacked(raw: bytes) -> tuple[int, ...]:
    if len(raw) % 8:
        raise ProtocolError("kv_exchange", f"{len(raw)} bytes of hashes; expected a multiple of 8")
    words = array("Q")
    words.frombytes(raw)
    if sys.byteorder == "big":
        words.byteswap()
    return tuple(words)
