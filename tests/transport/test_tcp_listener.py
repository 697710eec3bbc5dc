"""The listening side against peers that are wrong, slow or hostile: refused, and the next transfer is served."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from prfaas.core.errors import ConfigError
from prfaas.core.ids import Epoch, NodeName
from prfaas.testing.conformance import SECOND, Pair
from prfaas.testing.kv import Content
from prfaas.testing.rawpeer import RawPeer, frames, hello
from prfaas.testing.rigs import StreamRig
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.transport import StreamTransport
from prfaas.transport.tcp import TcpTransport
from prfaas.wire import messages as m
from prfaas.wire.frame import HEADER, encode

Say = Callable[[Pair], bytes]


def counters(pair: Pair) -> dict[str, int]:
    transport = pair.far
    assert isinstance(transport, StreamTransport)
    return dict(transport.stats.refusals)  # type: ignore[attr-defined]


def flipped(frame: bytes, at: int) -> bytes:
    return frame[:at] + bytes([frame[at] ^ 4]) + frame[at + 1 :]


def with_length(body: int, payload: int) -> bytes:
    return HEADER.pack(b"KV", m.Kind.HELLO, 0, body, payload, 0)


@pytest.mark.parametrize(
    ("say", "code"),
    [
        pytest.param(lambda p: b"GET / HTTP/1.1\r\nHost: example\r\n\r\n", "frame", id="http"),
        pytest.param(lambda p: bytes(64), "frame", id="zeros"),
        pytest.param(lambda p: with_length(0xFFFFFFFF, 0), "size", id="body of 4 GiB"),
        pytest.param(lambda p: with_length(10, 0xFFFFFFFF), "size", id="payload of 4 GiB"),
        pytest.param(lambda p: flipped(encode(hello(p, "r.0")), 100), "checksum", id="flipped bit"),
        pytest.param(lambda p: frames(p, Content(p.layout, 100).pieces(1000))[0], "order", id="DATA first"),
        pytest.param(lambda p: encode(m.Ping()), "order", id="PING first"),
        pytest.param(lambda p: encode(hello(p, "r.0", version=2)), "version", id="version 2"),
        pytest.param(lambda p: encode(hello(p, "r.0", direction="from-dialler")), "direction", id="direction"),
        pytest.param(lambda p: encode(hello(p, "r.0", connection=1)), "body", id="connection 1 of 1"),
        pytest.param(lambda p: encode(hello(p, "r.0", ticket="x")), "ticket", id="no ticket"),
        pytest.param(lambda p: encode(hello(p, "r.0", receiver="home1")), "ticket", id="another's ticket"),
        pytest.param(lambda p: encode(hello(p, "r.1", ticket=p.ticket("r.0"))), "ticket", id="another transfer"),
        pytest.param(lambda p: encode(hello(p, "r.0", layout="0" * 64)), "layout", id="layout"),
        pytest.param(lambda p: encode(hello(p, "r.0", length=99)), "length", id="length"),
        pytest.param(lambda p: encode(hello(p, "r.0", held=101)), "length", id="held more than all"),
    ],
)
async def test_is_refused_and_the_next_is_served(pair: Pair, say: Say, code: str) -> None:
    sending = pair.offer("r.0", 100)
    raw = await RawPeer.dial(pair.rig.peer(pair.far))
    raw.say(say(pair))
    refusal = await raw.hear(m.Refuse)
    assert refusal.code == code
    assert await raw.gone()
    await raw.close()
    assert counters(pair) == {code: 1}
    sending.abort("test", "over")
    await pair.move("r.9", Content(pair.layout, 100))


async def test_a_layout_is_refused_with_the_listeners_own(pair: Pair) -> None:
    sending = pair.offer("r.0", 100)
    raw = await RawPeer.dial(pair.rig.peer(pair.far))
    raw.say(hello(pair, "r.0", layout="0" * 64))
    refusal = await raw.hear(m.Refuse)
    assert refusal.layout is not None
    assert refusal.layout.revision == pair.layout.revision
    await raw.close()
    sending.abort("test", "over")


async def test_truncation_harms_nobody(pair: Pair) -> None:
    frame = encode(hello(pair, "r.0"))
    for size in (0, 1, 19, 20, 21, len(frame) - 1):
        raw = await RawPeer.dial(pair.rig.peer(pair.far))
        raw.say(frame[:size])
        await raw.close()
    await pair.move("r.0", Content(pair.layout, 100))


async def test_a_ticket_replayed_by_another_session_is_refused(pair: Pair) -> None:
    sending = pair.offer("r.0", 100)
    first, second = [await RawPeer.dial(pair.rig.peer(pair.far)) for _ in range(2)]
    first.say(hello(pair, "r.0"))
    welcome = await first.hear(m.Welcome)
    assert (welcome.session, welcome.epoch, welcome.version) == ("5e55", 1, 1)
    second.say(hello(pair, "r.0", session="other"))
    assert (await second.hear(m.Refuse)).code == "session"
    first.say(m.Ping())
    await first.hear(m.Pong)
    sending.abort("engine", "broke")
    assert await first.hear(m.Cancel) == m.Cancel("engine", "broke")
    for raw in (first, second):
        assert await raw.gone()
        await raw.close()


async def test_a_lane_shown_again_replaces_the_old_one(pair: Pair) -> None:
    """A connection that died without a word, as seen from the receiver only."""
    content = Content(pair.layout, 100)
    sending = pair.offer("r.0", 100)
    old, new = [await RawPeer.dial(pair.rig.peer(pair.far)) for _ in range(2)]
    old.say(hello(pair, "r.0"))
    await old.hear(m.Welcome)
    new.say(hello(pair, "r.0"))
    assert (await new.hear(m.Welcome)).round == 2
    assert await old.gone()
    for extent, data in content.pieces(1 << 20):
        sending.put(extent, data)
    sending.finish()
    while not isinstance(await new.next(), m.Complete):
        pass
    new.say(m.Landed(content.size(), 1))
    assert (await sending.released()).cause == "applied"
    new.say(m.Applied())
    new.say(hello(pair, "r.0"))
    assert (await new.hear(m.Refuse)).code == "ended"
    for raw in (old, new):
        await raw.close()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (b"\xff" * 40, "frame"),
        (encode(m.Applied()), "order"),
        (encode(m.Welcome(1, 1, "s", 1, 1000)), "order"),
        (flipped(encode(m.Landed(1, 1)), 25), "checksum"),
    ],
    ids=["garbage", "APPLIED before LANDED", "WELCOME", "flipped bit"],
)
async def test_a_receiver_that_breaks_the_protocol_ends_its_own_transfer(pair: Pair, said: bytes, code: str) -> None:
    sending = pair.offer("r.0", 100)
    raw = await RawPeer.dial(pair.rig.peer(pair.far))
    raw.say(hello(pair, "r.0"))
    await raw.hear(m.Welcome)
    raw.say(said)
    assert (await raw.hear(m.Cancel)).code == code
    assert (await sending.released()).cause == code
    await raw.close()
    await pair.move("r.1", Content(pair.layout, 100))


async def test_who_says_nothing_is_turned_away(rig: StreamRig) -> None:
    far = await rig.transport("far0", limits=TransportLimits(hello_ns=SECOND // 20))
    pair = Pair(rig, far, await rig.transport("home0"))
    silent, slow = [await RawPeer.dial(rig.peer(far)) for _ in range(2)]
    slow.say(encode(hello(pair, "r.0"))[:-1])
    assert await silent.gone()
    assert await slow.gone()
    await silent.close()
    await slow.close()
    await pair.move("r.0", Content(pair.layout, 100))


async def test_silent_connections_do_not_shut_others_out(rig: StreamRig) -> None:
    far = await rig.transport("far0", limits=TransportLimits(greeting=4))
    pair = Pair(rig, far, await rig.transport("home0"))
    silent = [await RawPeer.dial(rig.peer(far)) for _ in range(12)]
    await pair.move("r.0", Content(pair.layout, 100))
    assert far.greeter.waiting <= 4 + 2
    for raw in silent[:6]:
        assert await raw.gone()
    for raw in silent:
        await raw.close()


async def test_more_parked_than_allowed_are_busy(rig: StreamRig) -> None:
    far = await rig.transport("far0", limits=TransportLimits(parked=2))
    pair = Pair(rig, far, await rig.transport("home0"))
    raws = [await RawPeer.dial(rig.peer(far)) for _ in range(3)]
    for number, raw in enumerate(raws):
        raw.say(hello(pair, f"r.{number}"))
        if number < 2:
            raw.say(m.Ping())
            await raw.hear(m.Pong)
    assert (await raws[2].hear(m.Refuse)).code == "busy"
    assert far.greeter.parked == 2
    for raw in raws:
        await raw.close()


async def test_a_parked_hello_is_taken_when_its_transfer_is_offered(pair: Pair) -> None:
    raw = await RawPeer.dial(pair.rig.peer(pair.far))
    raw.say(hello(pair, "r.0"), m.Ping())
    await raw.hear(m.Pong)
    sending = pair.offer("r.0", 100)
    await raw.hear(m.Welcome)
    raw.say(m.Cancel("client", "left"))
    assert (await sending.released()).cause == "client"
    await raw.close()


async def test_beyond_loopback_a_secret_is_needed() -> None:
    transport = TcpTransport(NodeName("far0"), Epoch(1), None)
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0"):
        await transport.listen("0.0.0.0", 0)
    peer = await transport.listen("127.0.0.1", 0)
    assert peer.port > 0
    await transport.close()


async def test_a_have_that_is_not_of_the_transfer_is_no_excuse(pair: Pair) -> None:
    """Extents that do not fit are passed over; the resume goes on."""
    sending = pair.offer("r.0", 100)
    content = Content(pair.layout, 100)
    for extent, data in content.pieces(1 << 20):
        sending.put(extent, data)
    sending.finish()
    raw = await RawPeer.dial(pair.rig.peer(pair.far))
    raw.say(hello(pair, "r.0"))
    while not isinstance(await raw.next(), m.Complete):
        pass
    await raw.close()
    again = await RawPeer.dial(pair.rig.peer(pair.far))
    odd = [m.ExtentBody(77, "x", 0, 5, 0, 1), m.ExtentBody(0, "k", 5, 900, 0, 4), m.ExtentBody(0, "k", 0, 100, 0, 4)]
    again.say(msgspec.structs.replace(hello(pair, "r.0"), have=odd))
    await again.hear(m.Welcome)
    heads = []
    while not isinstance(frame := await again.next(), m.Complete):
        heads.append((frame.head.layer, frame.head.part))  # type: ignore[union-attr]
    assert heads == [(part.layer, part.name) for part in pair.layout.parts if (part.layer, part.name) != (0, "k")]
    again.say(m.Landed(1, 1), m.Applied())
    assert (await sending.released()).cause == "applied"
    await again.close()
