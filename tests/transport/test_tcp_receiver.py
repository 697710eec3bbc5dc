"""The dialling side against senders that are wrong: nothing unverified reaches the engine, and nothing hangs."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from prfaas.core.errors import PeerFailure, ProtocolError
from prfaas.testing.conformance import SECOND, Pair, failure
from prfaas.testing.kv import Content, bytes_of
from prfaas.testing.rawpeer import RawPeer, frames, listening
from prfaas.transport.base import Receiving
from prfaas.wire import messages as m
from prfaas.wire.frame import HEADER, encode, encode_data

LENGTH = 100


def welcome(hello: m.Hello, round_: int = 1, epoch: int = 1) -> m.Welcome:
    return m.Welcome(m.VERSION, epoch, hello.session, round_, 20_000)


def flipped(frame: bytes) -> bytes:
    return frame[:-1] + bytes([frame[-1] ^ 1])


async def ends_well(receiving: Receiving, content: Content) -> None:
    assert bytes_of(await receiving.landed()) == content.expected()
    receiving.applied()
    assert (await receiving.ended()).cause == "applied"


async def test_a_damaged_chunk_is_asked_for_again(pair: Pair) -> None:
    content = Content(pair.layout, LENGTH)
    data = frames(pair, content.pieces(2000))
    hellos = list[m.Hello]()

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        hellos.append(hello)
        raw.say(welcome(hello, len(hellos)))
        if len(hellos) == 1:
            raw.say(*data[:5], flipped(data[5]))
        else:
            raw.say(*data[5:], m.Complete(2, len(data), content.size()))
            await raw.hear(m.Landed)
            await raw.hear(m.Applied)
        await raw.gone()

    async with listening(script) as peer:
        receiving = pair.receive("r.0", LENGTH, connections=1, remote=[peer])
        await ends_well(receiving, content)
        # What was whole of the first round is not asked for again.
        assert hellos[0].have == []
        assert sum(body.stop - body.start for body in hellos[1].have) > 0
        assert hellos[0].session == hellos[1].session
        assert pair.home.stats.corrupt_chunks.total() == 1  # type: ignore[attr-defined]
        pair.home.pool.close()  # type: ignore[attr-defined]


async def test_a_line_that_damages_everything_is_given_up(pair: Pair) -> None:
    data = frames(pair, Content(pair.layout, LENGTH).pieces(2000))

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello), flipped(data[0]))
        await raw.gone()

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
    assert isinstance(error, PeerFailure)
    assert error.code == "corrupt"


async def test_a_damaged_duplicate_does_not_touch_what_is_verified(pair: Pair) -> None:
    content = Content(pair.layout, LENGTH)
    data = frames(pair, content.pieces(2000))

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        if hello.have:
            raw.say(welcome(hello, 2), data[-1])
            await raw.hear(m.Landed)
        else:
            raw.say(welcome(hello), *data[:-1], flipped(data[0]))
        await raw.gone()

    async with listening(script) as peer:
        await ends_well(pair.receive("r.0", LENGTH, connections=1, remote=[peer]), content)
        pair.home.pool.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ([b"\x00" * 64], "frame"),
        ([HEADER.pack(b"KV", m.Kind.DATA, 0, 10, 0xFFFFFFFF, 0)], "size"),
        ([HEADER.pack(b"KV", m.Kind.DATA, 0, 0xFFFFFFFF, 0, 0)], "size"),
        ([encode(m.Landed(1, 1))], "order"),
        ([encode(m.Complete(1, 0, 0))], "incomplete"),
        ([flipped(encode(m.Complete(1, 0, 0)))], "checksum"),
    ],
    ids=["garbage", "payload of 4 GiB", "head of 4 GiB", "LANDED", "nothing", "flipped bit"],
)
async def test_a_sender_that_breaks_the_protocol_is_told_and_left(pair: Pair, said: list[bytes], code: str) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello), *said)
        heard.set_result(await raw.hear(m.Cancel))
        await raw.gone()

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
        assert isinstance(error, ProtocolError)
        assert error.code == code
        assert (await heard).code == code
    await pair.move("r.1", Content(pair.layout, LENGTH))


@pytest.mark.parametrize("change", ["layer", "rows", "heads", "dtype", "state", "size"])
async def test_extents_that_are_not_of_the_transfer_are_refused(pair: Pair, change: str) -> None:
    head = {
        "layer": m.DataHead(9, "k", 0, 1, 0, 4, "float32", False, True),
        "rows": m.DataHead(0, "k", LENGTH, LENGTH + 1, 0, 4, "float32", False, True),
        "heads": m.DataHead(0, "k", 0, 1, 1, 5, "float32", False, True),
        "dtype": m.DataHead(0, "k", 0, 1, 0, 4, "float16", False, True),
        "state": m.DataHead(0, "k", 0, 1, 0, 4, "float32", True, True),
        "size": m.DataHead(0, "k", 0, 2, 0, 4, "float32", False, True),
    }[change]
    payload = bytes(4 * 16 * 4)

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello), encode_data(head, memoryview(payload)) + payload)
        await raw.gone()

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
    assert (type(error), error.code) == (ProtocolError, "extent")


async def test_what_is_not_final_is_not_taken(pair: Pair) -> None:
    content = Content(pair.layout, LENGTH)
    data = frames(pair, content.pieces(2000))
    early = frames(
        pair, [(replace(extent, final=False), memoryview(bytes(len(d)))) for extent, d in content.pieces(2000)]
    )

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello), *early, *data, *early)
        await raw.hear(m.Landed)
        await raw.gone()

    async with listening(script) as peer:
        await ends_well(pair.receive("r.0", LENGTH, connections=1, remote=[peer]), content)
        pair.home.pool.close()  # type: ignore[attr-defined]


async def test_a_sender_that_restarted_is_another_sender(pair: Pair) -> None:
    epochs = iter([1, 2])
    first = frames(pair, Content(pair.layout, LENGTH).pieces(2000))[0]

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello, epoch=next(epochs)), first)

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
    assert (type(error), error.code) == (PeerFailure, "epoch")


async def test_a_sender_that_always_hangs_up_is_given_up(pair: Pair) -> None:
    tries = list[m.Hello]()

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        tries.append(hello)

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
    assert (type(error), error.code) == (PeerFailure, "unreachable")
    assert len(tries) == 5


async def test_nobody_there(pair: Pair) -> None:
    async with listening(lambda raw, hello: asyncio.sleep(0)) as peer:
        pass
    error = await failure(pair.receive("r.0", LENGTH, remote=[peer]))
    assert (type(error), error.code) == (PeerFailure, "unreachable")


async def test_a_busy_listener_is_tried_again(pair: Pair) -> None:
    content = Content(pair.layout, LENGTH)
    tries = list[m.Hello]()

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        tries.append(hello)
        if len(tries) < 3:
            raw.say(m.Refuse("busy", "later"))
        else:
            raw.say(welcome(hello), *frames(pair, content.pieces(5000)))
            await raw.hear(m.Landed)
        await raw.gone()

    async with listening(script) as peer:
        await ends_well(pair.receive("r.0", LENGTH, connections=1, remote=[peer]), content)
        pair.home.pool.close()  # type: ignore[attr-defined]
    assert len(tries) == 3


async def test_a_welcome_for_another_session_is_refused(pair: Pair) -> None:
    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(m.Welcome(m.VERSION, 1, "another", 1, 1000))
        await raw.gone()

    async with listening(script) as peer:
        error = await failure(pair.receive("r.0", LENGTH, connections=1, remote=[peer]))
    assert (type(error), error.code) == (ProtocolError, "order")


async def test_left_overs_of_the_last_transfer_are_passed_over(pair: Pair) -> None:
    """What a listener said before it read APPLIED may still come when the connection serves the next transfer."""
    contents = [Content(pair.layout, LENGTH, seed) for seed in range(2)]
    late = frames(pair, contents[0].pieces(5000))

    async def script(raw: RawPeer, hello: m.Hello) -> None:
        raw.say(welcome(hello), *late)
        await raw.hear(m.Landed)
        await raw.hear(m.Applied)
        raw.say(*late[:3], m.Complete(1, 1, 1), m.Pong())
        again = await raw.hear(m.Hello)
        raw.say(m.Complete(1, 1, 1), *late[3:], m.Pong(), m.Cancel("late", ""))
        raw.say(welcome(again), *frames(pair, contents[1].pieces(3000)))
        await raw.hear(m.Landed)
        await raw.gone()

    async with listening(script) as peer:
        for number, content in enumerate(contents):
            receiving = pair.receive(f"r.{number}", LENGTH, connections=1, remote=[peer])
            await ends_well(receiving, content)
        assert pair.home.stats.dialled == 1  # type: ignore[attr-defined]
        pair.home.pool.close()  # type: ignore[attr-defined]


async def test_a_deadline_also_ends_a_handshake_that_never_comes(pair: Pair) -> None:
    async def script(raw: RawPeer, hello: m.Hello) -> None:
        await raw.gone()

    async with listening(script) as peer:
        receiving = pair.receive("r.0", LENGTH, connections=1, remote=[peer], within_ns=SECOND // 20)
        assert (await failure(receiving)).code == "deadline"
