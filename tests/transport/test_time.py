"""Pace, delay, leases and time-outs, in virtual time: exact, and over at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from prfaas.core.ids import Epoch, NodeName
from prfaas.core.transfer.receiver import Patience
from prfaas.testing.clock import run_virtual
from prfaas.testing.conformance import LINK, SECOND, SECRET, Pair, failure, put_all
from prfaas.testing.kv import Content, plain_layout
from prfaas.testing.rigs import StreamRig, Watched, memory_rig
from prfaas.transport.base import Peer
from prfaas.transport.memory import MemoryNetwork, MemoryTransport
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.transport import StreamTransport

MS = SECOND // 1000
LAYOUT = plain_layout(layers=2, heads=8, width=64)
LENGTH = 1000
CONTENT = Content(LAYOUT, LENGTH)  # 4,096,000 bytes


def virtual(test: Callable[[StreamRig], Awaitable[None]]) -> Callable[[], None]:
    async def run() -> None:
        rig = memory_rig()
        async with asyncio.timeout(10_000):
            await test(rig)
        assert await rig.close() == 0

    def wrapper() -> None:
        run_virtual(run())

    wrapper.__name__ = test.__name__
    return wrapper


class Log(Watched):
    """When how much left."""

    def __init__(self, rig: StreamRig) -> None:
        super().__init__()
        self.rig, self.entries = rig, list[tuple[int, int]]()

    def sent(self, link: Any, size_bytes: int) -> None:
        super().sent(link, size_bytes)
        self.entries.append((self.rig.now_ns(), size_bytes))


async def paced(rig: StreamRig, **options: Any) -> tuple[Pair, Log]:
    log = Log(rig)
    far = await rig.transport("far0", paced=True, stats=log, **options)
    return Pair(rig, far, await rig.transport("home0", **options), LAYOUT), log


@virtual
async def test_a_paced_transfer_takes_what_the_line_takes(rig: StreamRig) -> None:
    pair, log = await paced(rig)
    pair.far.pace(LINK, 8_000_000, 600 * SECOND, fence=1)  # 1 MB/s
    begun = rig.now_ns()
    released, ended = await pair.move("r.0", CONTENT, connections=4)
    took = rig.now_ns() - begun
    assert CONTENT.size() == 4_096_000
    assert 4.05 * SECOND < took < 4.2 * SECOND
    for outcome in (released, ended):
        assert outcome.bytes_moved * 8 * SECOND <= 8_000_000 * outcome.moving_ns
        assert outcome.moving_ns > 3.9 * SECOND
    largest = max(size for _, size in log.entries)
    assert largest <= 64 * 1024
    for i, (begin, _) in enumerate(log.entries):
        sent = 0
        for end, size in log.entries[i:]:
            sent += size
            # The line, a burst of 5 ms, and one chunk.
            assert sent <= (end - begin + 5 * MS) * 1_000_000 // SECOND + largest


@virtual
async def test_transfers_on_one_link_share_its_pace(rig: StreamRig) -> None:
    pair, _ = await paced(rig)
    pair.far.pace(LINK, 80_000_000, 600 * SECOND, fence=1)
    sendings = [pair.offer(f"r{i}.0", LENGTH) for i in range(3)]
    receivings = [pair.receive(f"r{i}.0", LENGTH, connections=1) for i in range(3)]
    for sending in sendings:
        put_all(sending, CONTENT.pieces(200_000))
    times = []
    for receiving in receivings:
        await receiving.landed()
        times.append(rig.now_ns())
        receiving.applied()
    # All three end within the last fiftieth: they took turns.
    assert max(times) - min(times) < max(times) // 50
    assert max(times) * 10_000_000 > CONTENT.size() * 3 * SECOND * 0.98
    for sending in sendings:
        await sending.released()


@virtual
async def test_when_the_lease_of_the_pace_lapses_nothing_leaves(rig: StreamRig) -> None:
    pair, log = await paced(rig)
    sending, receiving = pair.offer("r.0", LENGTH), pair.receive("r.0", LENGTH)
    put_all(sending, CONTENT.pieces(200_000))
    for fence in range(1, 100):
        begun = rig.now_ns()
        pair.far.pace(LINK, 8_000_000, 500 * MS, fence)
        await rig.passes(2 * SECOND)
        assert all(at < begun + 500 * MS for at, _ in log.entries)
        if log.sent_bytes[LINK] == CONTENT.size():
            break
    # At most half a megabyte a lease: nine leases at least.
    assert fence >= 9
    await pair.settle(sending, receiving, CONTENT)


@virtual
async def test_an_emulated_round_trip(rig: StreamRig) -> None:
    delays = {LINK: 50 * MS}
    pair = Pair(rig, await rig.transport("far0", delays=delays), await rig.transport("home0", delays=delays), LAYOUT)
    begun = rig.now_ns()
    sending, receiving = pair.offer("r.0", LENGTH), pair.receive("r.0", LENGTH)
    put_all(sending, CONTENT.pieces(200_000))
    await receiving.landed()
    # HELLO there, WELCOME and all KV back: one round trip, however much it is.
    assert rig.now_ns() - begun == 100 * MS
    await sending.released()
    assert rig.now_ns() - begun == 150 * MS
    receiving.applied()
    await receiving.ended()


@virtual
async def test_a_reused_connection_keeps_no_delay(rig: StreamRig) -> None:
    delays = {LINK: 50 * MS}
    pair = Pair(rig, await rig.transport("far0", delays=delays), await rig.transport("home0"), LAYOUT)
    await pair.move("r.0", CONTENT)
    before = rig.now_ns()
    await pair.move("r.1", CONTENT)
    assert rig.now_ns() - before == 50 * MS
    assert rig.dialled(pair.home) == 2


@virtual
async def test_a_parked_hello_waits_as_long_as_its_ticket(rig: StreamRig) -> None:
    pair = await Pair.make(rig)
    begun = rig.now_ns()
    error = await failure(pair.receive("r.0", LENGTH, within_ns=1000 * SECOND))
    assert error.code == "unknown"
    assert 58 * SECOND < rig.now_ns() - begun <= 60 * SECOND


@virtual
async def test_a_life_sign_comes_every_third_of_a_lease(rig: StreamRig) -> None:
    pair = await Pair.make(rig)
    sending, receiving = pair.offer("r.0", 100, lease_ns=3 * SECOND), pair.receive("r.0", 100)
    await rig.passes(1000 * SECOND // 20)
    content = Content(pair.layout, 100)
    put_all(sending, content.pieces(5000))
    await pair.settle(sending, receiving, content)


@virtual
async def test_a_silent_receiver_is_given_up_one_lease_after_its_last_sign(rig: StreamRig) -> None:
    pair = await Pair.make(rig)
    sending, _ = pair.offer("r.0", 100, lease_ns=3 * SECOND), pair.receive("r.0", 100)
    sending.put(*Content(pair.layout, 100).pieces(5000)[0])
    await rig.received(pair.home, 1)
    gone = rig.now_ns()
    rig.vanish(pair.home)
    assert (await sending.released()).cause == "lease"
    assert rig.now_ns() - gone == 3 * SECOND


@virtual
async def test_a_silent_sender_is_noticed_within_its_lease_and_the_tries(rig: StreamRig) -> None:
    pair = await Pair.make(rig, patience_ns=3 * SECOND)
    sending, receiving = pair.offer("r.0", 100, lease_ns=3 * SECOND), pair.receive("r.0", 100)
    sending.put(*Content(pair.layout, 100).pieces(5000)[0])
    await rig.received(pair.home, 1)
    gone = rig.now_ns()
    rig.vanish(pair.far)
    assert (await failure(receiving)).code == "unreachable"
    assert rig.now_ns() - gone < 5 * SECOND


@virtual
async def test_a_connection_that_idles_is_closed_by_who_dialled(rig: StreamRig) -> None:
    limits = TransportLimits(idle_ns=10 * SECOND)
    pair = Pair(rig, await rig.transport("far0", limits=limits), await rig.transport("home0", limits=limits))
    content = Content(pair.layout, 100)
    await pair.move("r.0", content, connections=3)
    far, home = pair.far, pair.home
    assert isinstance(far, StreamTransport)
    assert isinstance(home, StreamTransport)
    await rig.passes(9 * SECOND)
    assert (len(home.pool), far.greeter.waiting) == (3, 3)
    await rig.passes(2 * SECOND)
    assert (len(home.pool), far.greeter.waiting, len(home.connections), len(far.connections)) == (0, 0, 0, 0)
    await pair.move("r.1", content)


@virtual
async def test_a_connection_that_the_listener_closed_while_idle_is_not_used(rig: StreamRig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 100)
    await pair.move("r.0", content, connections=3)
    rig.cut(pair.far)
    await pair.move("r.1", content, connections=3)
    assert rig.dialled(pair.home) == 6


class Deaf(MemoryTransport):
    """Dials, and nothing comes of it."""

    async def dial(self, peer: Peer, connection: Connection) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("tries", [1, 3])
def test_a_connect_that_hangs_is_timed_out(tries: int) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        limits = TransportLimits(connect_ns=2 * SECOND, patience=Patience(tries=tries))
        clock = lambda: int(loop.time() * SECOND)  # noqa: E731
        deaf = Deaf(NodeName("home0"), Epoch(1), SECRET, MemoryNetwork(), clock=clock, limits=limits)
        receiving = deaf.receive(
            "r.0", LAYOUT, 10, [Peer("far", 1)], "", held=0, connections=2, link=LINK, deadline_ns=100 * SECOND
        )  # type: ignore[arg-type]
        error = await failure(receiving)
        assert error.code == "unreachable"
        assert "did not answer in time" in error.detail
        assert tries * 2 * SECOND <= clock() < tries * 2 * SECOND + SECOND
        await deaf.close()

    run_virtual(run())
