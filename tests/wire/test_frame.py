"""Frames: however the bytes are cut, the same come out; what is not allowed is refused before memory is taken."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from prfaas.core.errors import InvariantError, ProtocolError
from prfaas.wire import messages as m
from prfaas.wire.frame import HEADER, Data, Decoder, encode, encode_data

ALL = frozenset(m.Kind)

HELLO = m.Hello(
    version=1, ticket="t", transfer="r.0", session="s", receiver="b", connection=0, connections=2, layout="f", length=9,
    held=3, have=[m.ExtentBody(0, "k", 3, 5, 0, 4)],
)  # fmt: skip
MESSAGES: list[m.Message] = [
    HELLO,
    m.Welcome(1, 1_700_000_000_000_000_000, "s", 1, 5000),
    m.Refuse("layout", "differs", m.LayoutBody("r", [m.PartBody(0, "k", "tokens", [4, 8], "float32", 0, True)])),
    m.Refuse("ticket", "expired"),
    m.Complete(3, 10, 1 << 40),
    m.Landed(1 << 40, 123),
    m.Applied(),
    m.Cancel("client", "left"),
    m.Ping(),
    m.Pong(),
]
HEAD = m.DataHead(3, "k", 0, 2, 0, 4, "float32", False, True)


def decoder(allowed: frozenset[m.Kind] = ALL, drop: bool = False) -> Decoder:
    return Decoder(allowed, lambda head, size: None if drop else memoryview(bytearray(size)))


def plain(frames: Iterator[m.Message | Data]) -> list[object]:
    return [
        (f.head, f.size, f.intact, bytes(f.payload) if f.payload is not None else None) if isinstance(f, Data) else f
        for f in frames
    ]


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    """What happens within may be refused, but in no other way."""
    seen = None
    try:
        yield
    except ProtocolError as error:
        seen = error.code
    assert seen is None or seen in codes


def raw(kind: int, body: bytes, payload: bytes = b"", sizes: tuple[int, int] | None = None) -> bytes:
    """A frame with a right checksum, whatever is in it."""
    claimed = sizes or (len(body), len(payload))
    summed = HEADER.pack(b"KV", kind, 0, *claimed, 0)[:12]
    return summed + xxh3_64_intdigest(summed + body + payload).to_bytes(8, "big") + body + payload


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_survives(message: m.Message) -> None:
    assert list(decoder().feed(encode(message))) == [message]


@given(
    st.lists(st.one_of(st.sampled_from(MESSAGES), st.integers(0, 70_000)), max_size=12),
    st.lists(st.integers(1, 40_000), min_size=1, max_size=10),
    st.booleans(),
)
def test_any_cut_gives_the_same_frames(items: list[m.Message | int], cuts: list[int], drop: bool) -> None:
    stream, expected = b"", list[object]()
    for number, item in enumerate(items):
        if isinstance(item, int):
            payload = bytes([number]) * item
            stream += encode_data(HEAD, memoryview(payload)) + payload
            expected.append((HEAD, item, True, None if drop else payload))
        else:
            stream += encode(item)
            expected.append(item)
    target, found, at, turn = decoder(drop=drop), list[object](), 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        found += plain(target.feed(stream[at : at + step]))
        at, turn = at + step, turn + 1
    assert found == expected
    assert not target.under_way


def test_a_large_payload_goes_straight_to_its_place() -> None:
    place = bytearray(3 * m.MIB)
    target = Decoder(ALL, lambda head, size: memoryview(place))
    payload = bytes(range(256)) * (3 * m.MIB // 256)
    stream = memoryview(encode_data(HEAD, memoryview(payload)) + payload)
    frames = list[m.Message | Data]()
    direct = 0
    while stream:
        room = target.buffer()
        direct += len(room) > m.MIB
        step = min(len(room), len(stream))
        room[:step] = stream[:step]
        stream = stream[step:]
        frames += target.advance(step)
    assert direct == 1
    assert place == payload
    [data] = frames
    assert isinstance(data, Data)
    assert data.intact


@given(st.integers(0, 12 * 8 - 1))
def test_a_flipped_bit_anywhere_in_a_header_never_passes(bit: int) -> None:
    frame = bytearray(encode(m.Landed(5, 6)))
    frame[bit // 8] ^= 1 << bit % 8
    target, found = decoder(), list[m.Message | Data]()
    with refused("frame", "size", "checksum"):
        found += target.feed(bytes(frame))
    # Refused; or taken for DATA, and told; or a length that grew, and the rest never comes.
    assert not any(not isinstance(data, Data) or data.intact for data in found)


@given(st.integers(8 * 12, 8 * (HEADER.size + 30) - 1))
def test_a_flipped_bit_in_data_is_told(bit: int) -> None:
    payload = bytes(2000)
    frame = bytearray(encode_data(HEAD, memoryview(payload)) + payload)
    frame[bit // 8] ^= 1 << bit % 8
    [data] = decoder().feed(bytes(frame))
    assert isinstance(data, Data)
    assert not data.intact


def test_an_unreadable_head_is_told_by_a_good_checksum_or_not() -> None:
    [data] = decoder().feed(raw(m.Kind.DATA, b"\xc1", b"abc"))
    assert isinstance(data, Data)
    assert (data.head, data.payload, data.intact) == (None, None, True)
    frame = bytearray(raw(m.Kind.DATA, b"\xc1", b"abc"))
    frame[-1] ^= 1
    [data] = decoder().feed(bytes(frame))
    assert isinstance(data, Data)
    assert not data.intact


@pytest.mark.parametrize("kind", list(m.Kind))
def test_a_length_beyond_the_bound_is_refused_before_memory_is_taken(kind: m.Kind) -> None:
    sizes = [(m.MAX_BODY_BYTES[kind] + 1, 0), (0xFFFFFFFF, 0), (0, 0xFFFFFFFF)]
    sizes.append((0, m.MAX_PAYLOAD_BYTES + 1) if kind is m.Kind.DATA else (0, 1))
    for claimed in sizes:
        target = decoder()
        tracemalloc.start()
        with pytest.raises(ProtocolError, match="size: "):
            list(target.feed(raw(kind, b"", sizes=claimed)))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 256 * m.KIB


def test_the_largest_hello_passes() -> None:
    extents = [m.ExtentBody(layer, "latent", 0, 1 << 20, 0, 1) for layer in range(m.MAX_HAVE)]
    hello = msgspec.structs.replace(HELLO, have=extents)
    frame = encode(hello)
    assert len(frame) > 64 * m.KIB
    assert list(decoder().feed(frame)) == [hello]
    with pytest.raises(ProtocolError, match="body: "):
        list(decoder().feed(encode(msgspec.structs.replace(HELLO, have=[*extents, extents[0]]))))
    with pytest.raises(InvariantError):
        encode(msgspec.structs.replace(HELLO, have=extents * 10))


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20), "frame"),
        (bytes(20), "frame"),
        (raw(0, b""), "frame"),
        (raw(11, b""), "frame"),
        (raw(m.Kind.PING, b""), "body"),
        (raw(m.Kind.PING, b"\xc1"), "body"),
        (raw(m.Kind.PING, msgspec.msgpack.encode({"t": "pang"})), "body"),
        (raw(m.Kind.PING, msgspec.msgpack.encode({})), "body"),
        (raw(m.Kind.PING, msgspec.msgpack.encode({"t": "pong"})), "body"),
        (raw(m.Kind.PING, b"\x91" * 4000), "body"),
        (raw(m.Kind.CANCEL, msgspec.msgpack.encode({"t": "cancel", "code": 5, "detail": ""})), "body"),
        (raw(m.Kind.CANCEL, msgspec.msgpack.encode({"t": "cancel", "code": "x" * 513, "detail": ""})), "body"),
        (raw(m.Kind.COMPLETE, msgspec.msgpack.encode({"t": "complete", "round": -1, "chunks": 0, "bytes": 0})), "body"),
        (raw(m.Kind.CANCEL, b"\x83\xa1t\xa6cancel\xa4code\xa1\xff\xa6detail\xa0"), "body"),
    ],
)
def test_garbage_is_refused(frame: bytes, code: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        list(decoder().feed(frame))
    assert caught.value.code == code


def test_an_unknown_field_is_ignored() -> None:
    body = msgspec.msgpack.encode({"t": "cancel", "code": "a", "detail": "b", "colour": "blue"})
    assert list(decoder().feed(raw(m.Kind.CANCEL, body))) == [m.Cancel("a", "b")]


def test_a_kind_that_may_not_come_now_is_refused_unread() -> None:
    with pytest.raises(ProtocolError, match="order: DATA"):
        list(decoder(frozenset({m.Kind.HELLO})).feed(raw(m.Kind.DATA, b"", b"", sizes=(10, 1000))))


def test_what_may_come_can_change_between_two_frames_of_one_read() -> None:
    target = decoder(frozenset({m.Kind.PING}))
    found = []
    for frame in target.feed(encode(m.Ping()) + encode(m.Pong())):
        found.append(frame)
        target.allowed = frozenset({m.Kind.PONG})
    assert found == [m.Ping(), m.Pong()]


@given(st.binary(max_size=300))
def test_no_bytes_do_worse_than_a_protocol_error(data: bytes) -> None:
    for prefix in (b"", b"KV", raw(m.Kind.HELLO, b"", sizes=(len(data), 0))[:20]):
        with refused("frame", "size", "checksum", "body", "order"):
            list(decoder().feed(prefix + data))


def test_a_resting_decoder_keeps_little_memory_and_goes_on() -> None:
    payload, stream = bytes(5000), decoder()
    wire = encode_data(HEAD, memoryview(payload)) + payload
    expected = plain(decoder().feed(wire))
    assert plain(stream.feed(wire)) == expected
    assert len(stream.buffer()) > 1 << 17, "it makes room for more of the same"
    stream.rest()
    assert len(stream.buffer()) <= 1 << 15
    assert plain(stream.feed(wire)) == expected
    first, rest = wire[:100], wire[100:]
    assert plain(stream.feed(first)) == []
    stream.rest()  # in the middle of a frame nothing is given up
    assert plain(stream.feed(rest)) == expected
