"""Frames: messages and KV payloads <-> bytes. Sans-IO: whoever owns a socket asks where to put bytes and says how
many came.

It knows headers, bounds and checksums. It does not know sockets, nor which extents are wanted: where a payload goes
is asked of `place`, so that it can be received straight into its destination. A length is checked before memory is
taken for it.

    header (20 bytes, big-endian): "KV" kind:u8 0:u8 body:u32 payload:u32 checksum:u64, then the body, then the payload
    checksum: XXH3-64 (seed 0) over the header's first 12 bytes, the body and the payload
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from xxhash import xxh3_64, xxh3_64_intdigest

from prfaas.core.errors import InvariantError, ProtocolError
from prfaas.wire.messages import KIB, KIND_OF, MAX_BODY_BYTES, MAX_PAYLOAD_BYTES, DataHead, Kind, Message

HEADER = struct.Struct(">2sBBIIQ")
_SUMMED = struct.Struct(">2sBBII")
_MAGIC = b"KV"
_FIRST_STAGING_BYTES = 16 * KIB
_STAGING_BYTES = 256 * KIB
"""Once DATA comes."""
_DIRECT_BYTES = 128 * KIB
_PEEK_BYTES = 8 * KIB
"""Read ahead so little after a payload of _DIRECT_BYTES: the next one should go to its destination, not through the
staging buffer."""

_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_heads = msgspec.msgpack.Decoder(DataHead)


@dataclass(slots=True)
class Data:
    """A DATA frame that came whole.

    `payload` is what `place` gave, None when it gave nothing; `intact` tells whether the checksum is right. `head` is
    None when it could not be read.
    """

    head: DataHead | None
    size: int
    payload: memoryview | None
    intact: bool


def encode(message: Message) -> bytes:
    """A control frame. Raises InvariantError when its body is larger than a peer would take."""
    body = _encoder.encode(message)
    kind = KIND_OF[type(message)]
    if len(body) > MAX_BODY_BYTES[kind]:
        raise InvariantError(f"a {kind.name} body of {len(body)} bytes")
    summed = _SUMMED.pack(_MAGIC, kind, 0, len(body), 0)
    return summed + xxh3_64_intdigest(summed + body).to_bytes(8, "big") + body


def encode_data(head: DataHead, *payload: memoryview) -> bytes:
    """The header and head of a DATA frame; `payload`, views of C-contiguous bytes, must follow it on the wire."""
    body = _encoder.encode(head)
    summed = _SUMMED.pack(_MAGIC, Kind.DATA, 0, len(body), sum(len(view) for view in payload))
    checksum = xxh3_64(summed)
    checksum.update(body)
    for view in payload:
        checksum.update(view)
    return summed + checksum.intdigest().to_bytes(8, "big") + body


Place = Callable[[DataHead, int], memoryview | None]


class Decoder:
    """Turns bytes into messages and Data. `allowed` are the kinds that may come now; whoever owns the connection
    sets it.

    `place(head, size)` says where a payload goes: a writable view of `size` bytes, or None to check and drop it.
    """

    def __init__(self, allowed: frozenset[Kind], place: Place) -> None:
        self.allowed = allowed
        self.place = place
        self._staging = bytearray(_FIRST_STAGING_BYTES)
        self._view = memoryview(self._staging)
        self._start = 0
        self._end = 0
        self._window = _FIRST_STAGING_BYTES
        self._head: DataHead | None = None
        self._target: memoryview | None = None
        self._size = 0
        self._got = 0
        self._sum = xxh3_64()
        self._expected = 0

    @property
    def under_way(self) -> bool:
        """Whether part of a frame is here."""
        return self._got < self._size or self._end > self._start

    def rest(self) -> None:
        """Nothing is expected soon: keep no more memory than a new one does."""
        if not self.under_way:
            self._staging = bytearray(_FIRST_STAGING_BYTES)
            self._view = memoryview(self._staging)
            self._start = self._end = 0
            self._window = _FIRST_STAGING_BYTES

    def buffer(self) -> memoryview:
        """Where the next bytes go; never empty. Say `advance` before asking again."""
        left = self._size - self._got
        if left == 0:
            return self._view[self._end : max(self._window, self._end + _PEEK_BYTES)]
        if self._target is None:
            return self._view[: min(left, len(self._view))]
        return self._target[self._got :]

    def feed(self, data: bytes) -> Iterator[Message | Data]:
        """`buffer` and `advance` for bytes that are in memory already."""
        view = memoryview(data)
        while view:
            room = self.buffer()
            step = min(len(room), len(view))
            room[:step] = view[:step]
            view = view[step:]
            yield from self.advance(step)

    def redirect(self, target: memoryview) -> None:
        """The payload that is under way goes on into `target`; what is here of it already is the caller's to copy."""
        self._target = target

    @property
    def received(self) -> int:
        """Bytes that are here of the payload that is under way."""
        return self._got

    def advance(self, count: int) -> Iterator[Message | Data]:
        """`count` bytes were written to `buffer()`. Yields what they complete, in order; must be run to its end.

        Between two yields the owner may change `allowed` and `place`. Raises ProtocolError: the connection is of no
        use then.
        """
        if self._got < self._size:
            where = self._target[self._got :] if self._target is not None else self._view
            yield from self._filled(where[:count])
            return
        self._end += count
        while self._end - self._start >= HEADER.size:
            kind, body_size, size, checksum = self._header()
            need = HEADER.size + body_size
            if self._end - self._start < need:
                self._make_room(need)
                return
            body = self._view[self._start + HEADER.size : self._start + need]
            summed = self._view[self._start : self._start + _SUMMED.size]
            self._start += need
            if kind is Kind.DATA:
                yield from self._begin(summed, body, size, checksum)
            else:
                yield self._message(kind, summed, body, checksum)
        self._make_room(HEADER.size)

    def _header(self) -> tuple[Kind, int, int, int]:
        magic, number, flags, body_size, size, checksum = HEADER.unpack_from(self._staging, self._start)
        if magic != _MAGIC or flags != 0:
            raise ProtocolError("frame", "this is no frame")
        try:
            kind = Kind(number)
        except ValueError:
            raise ProtocolError("frame", f"unknown kind {number}") from None
        if kind not in self.allowed:
            raise ProtocolError("order", f"{kind.name} may not come now")
        if body_size > MAX_BODY_BYTES[kind]:
            raise ProtocolError("size", f"a {kind.name} body of {body_size} bytes; at most {MAX_BODY_BYTES[kind]}")
        if size > (MAX_PAYLOAD_BYTES if kind is Kind.DATA else 0):
            raise ProtocolError("size", f"a {kind.name} payload of {size} bytes")
        return kind, body_size, size, checksum

    def _message(self, kind: Kind, summed: memoryview, body: memoryview, checksum: int) -> Message:
        if xxh3_64_intdigest(bytes(summed) + body) != checksum:
            raise ProtocolError("checksum", f"a {kind.name} frame is damaged")
        try:
            message = _messages.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("body", f"{kind.name}: {error}") from None
        if KIND_OF[type(message)] is not kind:
            raise ProtocolError("body", f"a {kind.name} frame holds a {type(message).__name__}")
        return message

    def _begin(self, summed: memoryview, body: memoryview, size: int, checksum: int) -> Iterator[Data]:
        self._sum = xxh3_64(summed)
        self._sum.update(body)
        self._expected, self._size, self._got = checksum, size, 0
        try:
            self._head = _heads.decode(body)
        except (msgspec.ValidationError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._head = None
        self._target = self.place(self._head, size) if self._head is not None else None
        self._window = _PEEK_BYTES if size >= _DIRECT_BYTES else _STAGING_BYTES
        here = min(size, self._end - self._start)
        source = self._view[self._start : self._start + here]
        if self._target is not None:
            self._target[:here] = source
        self._start += here
        if size == 0:
            yield self._whole()
        elif here:
            yield from self._filled(source)

    def _filled(self, data: memoryview) -> Iterator[Data]:
        self._sum.update(data)
        self._got += len(data)
        if self._got == self._size:
            yield self._whole()

    def _whole(self) -> Data:
        data = Data(self._head, self._size, self._target, self._sum.intdigest() == self._expected)
        self._head = self._target = None
        self._size = self._got = 0
        return data

    def _make_room(self, need: int) -> None:
        """Bring what is left to the front; grow only for a body whose length was checked."""
        left = self._end - self._start
        if max(need, self._window) > len(self._staging):
            grown = bytearray(max(need + _PEEK_BYTES, self._window))
            grown[:left] = self._view[self._start : self._end]
            self._staging, self._view = grown, memoryview(grown)
        elif self._start:
            self._view[:left] = bytes(self._view[self._start : self._end])
        self._start, self._end = 0, left
        self._window = max(self._window, need)
