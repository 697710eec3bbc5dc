"""What every transport must do, as checks that any test runner can call: `for check in CHECKS: await check(rig)`.

It knows `transport.base` and a rig that makes transports and breaks things. It does not know sockets. Each check starts
with new transports; the rig's owner closes them and checks afterwards that nothing is held. One file, long as it is:
it is one list of promises, each check stands alone, and who writes a transport reads it from top to bottom.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Protocol

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import InvariantError, LocalError, PeerFailure, ProtocolError, RemoteError
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.core.transfer.extent import Extent
from prfaas.testing.kv import Content, bytes_of, hybrid_layout, total
from prfaas.transport.base import InHand, Outcome, Peer, Receiving, Sending, Transport
from prfaas.wire.ticket import mint

SECOND = 1_000_000_000
SECRET = b"a secret for tests, long enough for anybody"
LINK = LinkName("far->home")
LEASE_NS = 20 * SECOND


class Rig(Protocol):
    """Makes transports that reach each other, and breaks them."""

    async def transport(self, node: str, *, paced: bool = False, patience_ns: int = 15 * SECOND) -> Transport:
        """A new one, listening. `paced`: LINK needs a lease. `patience_ns`: how long it bears a silent peer."""

    def peer(self, transport: Transport) -> Peer:
        """Where it listens."""

    def cut(self, transport: Transport) -> None:
        """Break all its connections, now."""

    def vanish(self, transport: Transport) -> None:
        """From now on it neither says nor answers anything, as a machine without power."""

    def dialled(self, transport: Transport) -> int:
        """Connections that it has made so far, reused ones counted once."""

    def now_ns(self) -> int:
        """The transports' clock."""

    async def received(self, transport: Transport, size_bytes: int) -> None:
        """Until so many KV bytes came in there, of all its transfers."""

    async def passes(self, span_ns: int) -> None:
        """Until so much time has passed on the transports' clock."""


class Pair:
    """A prefill and a decode side, and transfers between them."""

    def __init__(self, rig: Rig, far: Transport, home: Transport, layout: KVLayout | None = None) -> None:
        self.rig, self.far, self.home = rig, far, home
        self.layout = layout or hybrid_layout()

    @classmethod
    async def make(cls, rig: Rig, **options: Any) -> Pair:
        """Both sides, new."""
        return cls(rig, await rig.transport("far0", **options), await rig.transport("home0", **options))

    def ticket(self, transfer: str, **changes: Any) -> str:
        """A good one, but for `changes`."""
        claims: dict[str, Any] = {
            "transfer": TransferId(transfer),
            "epoch": Epoch(1),
            "node": NodeName("far0"),
            "receiver": NodeName("home0"),
            "link": LINK,
            "lifetime_s": 60,
            "now": time.time(),
        }
        return mint(changes.pop("secret", SECRET), **{**claims, **changes})

    def offer(self, transfer: str, length: int, lease_ns: int = LEASE_NS) -> Sending:
        """On the prefill side."""
        return self.far.offer(TransferId(transfer), self.layout, length, LINK, lease_ns)

    def receive(
        self,
        transfer: str,
        length: int,
        *,
        held: int = 0,
        connections: int = 2,
        ticket: str | None = None,
        within_ns: int = 60 * SECOND,
        layout: KVLayout | None = None,
        remote: Iterable[Peer] | None = None,
    ) -> Receiving:
        """On the decode side."""
        return self.home.receive(
            TransferId(transfer),
            layout or self.layout,
            length,
            list(remote or [self.rig.peer(self.far)]),
            self.ticket(transfer) if ticket is None else ticket,
            held=held,
            connections=connections,
            link=LINK,
            deadline_ns=self.rig.now_ns() + within_ns,
        )

    async def move(
        self, transfer: str, content: Content, held: int = 0, connections: int = 2
    ) -> tuple[Outcome, Outcome]:
        """One whole transfer, checked; how it ended on both sides."""
        sending = self.offer(transfer, content.length)
        receiving = self.receive(transfer, content.length, held=held, connections=connections)
        put_all(sending, content.pieces(10_000))
        return await self.settle(sending, receiving, content, held)

    async def settle(
        self, sending: Sending, receiving: Receiving, content: Content, held: int = 0
    ) -> tuple[Outcome, Outcome]:
        """Wait for both sides to end well, checking every byte."""
        landed = await receiving.landed()
        assert (landed.length, landed.held) == (content.length, held)
        assert bytes_of(landed) == content.expected(held)
        released = await sending.released()
        receiving.applied()
        ended = await receiving.ended()
        assert (released.cause, ended.cause) == ("applied", "applied")
        assert self.far.in_use == self.home.in_use == 0
        return released, ended


def put_all(sending: Sending, pieces: Iterable[tuple[Extent, memoryview]]) -> None:
    """All pieces, then the end."""
    for extent, data in pieces:
        sending.put(extent, data)
    sending.finish()


async def failure(receiving: Receiving) -> RemoteError:
    """What `landed` raises; `ended` must say the same."""
    found: RemoteError | None = None
    try:
        await receiving.landed()
    except RemoteError as error:
        found = error
    assert found is not None, "it landed"
    outcome = await receiving.ended()
    assert (outcome.cause, outcome.detail) == (found.code, found.detail)
    return found


# The checks. Each says in its name what must hold.


async def every_byte_arrives_whoever_comes_first(rig: Rig) -> None:
    pair = await Pair.make(rig)
    for number, (receiver_first, length) in enumerate([(True, 300), (False, 300), (True, 1), (False, 5000)]):
        content, name = Content(pair.layout, length, number), f"r{number}.0"
        if receiver_first:
            receiving = pair.receive(name, length)
            await asyncio.sleep(0)
            sending = pair.offer(name, length)
            put_all(sending, content.pieces(4096))
        else:
            sending = pair.offer(name, length)
            put_all(sending, content.pieces(4096))
            await asyncio.sleep(0)
            receiving = pair.receive(name, length)
        released, ended = await pair.settle(sending, receiving, content)
        assert released.bytes_moved == ended.bytes_moved == content.size()
        assert released.moving_ns == ended.moving_ns


async def order_and_duplicates_do_not_matter(rig: Rig) -> None:
    pair, chance = await Pair.make(rig), random.Random(3)
    content = Content(pair.layout, 700)
    pieces = content.pieces(1000) + content.pieces(777)
    chance.shuffle(pieces)
    sending, receiving = pair.offer("r.0", 700), pair.receive("r.0", 700, connections=4)
    put_all(sending, pieces)
    await pair.settle(sending, receiving, content)


async def pieces_by_head_meet_in_one_buffer(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 90)
    parts = {(part.layer, part.name): part for part in pair.layout.parts}
    pieces: list[tuple[Extent, memoryview]] = []
    for extent, data in content.pieces(1 << 30):
        part = parts[extent.layer, extent.part]
        rows = len(data) // part.unit_bytes
        width = part.unit_bytes // part.shape[0]
        for head in range(part.shape[0]):
            column = b"".join(
                data[row * part.unit_bytes + head * width : row * part.unit_bytes + (head + 1) * width]
                for row in range(rows)
            )
            pieces.append((Extent(*_place(extent), (head, head + 1)), memoryview(column)))
    random.Random(5).shuffle(pieces)
    sending, receiving = pair.offer("r.0", 90), pair.receive("r.0", 90)
    put_all(sending, pieces)
    await pair.settle(sending, receiving, content)


def _place(extent: Extent) -> tuple[int, str, int, int]:
    return extent.layer, extent.part, extent.start, extent.stop


async def only_the_increment_moves(rig: Rig) -> None:
    pair = await Pair.make(rig)
    for number, held in enumerate([1, 64, 250, 299]):
        content = Content(pair.layout, 300, number)
        _, ended = await pair.move(f"r{number}.0", content, held=held)
        assert ended.bytes_moved == content.size(held)


async def nothing_missing_lands_at_once(rig: Rig) -> None:
    pair = await Pair.make(rig)
    receiving = pair.receive("r.0", 100, held=100)
    sending = pair.offer("r.0", 100)
    landed = await receiving.landed()
    assert landed.parts == {}
    assert (await sending.released()).cause == "applied"
    receiving.applied()
    assert (await receiving.ended()).cause == "applied"


async def many_at_once_do_not_mix(rig: Rig) -> None:
    pair = await Pair.make(rig)
    contents = [Content(pair.layout, 200 + i, i) for i in range(12)]
    sendings = [pair.offer(f"r{i}.0", content.length) for i, content in enumerate(contents)]
    receivings = [pair.receive(f"r{i}.0", content.length, connections=1 + i % 3) for i, content in enumerate(contents)]
    for sending, content in zip(sendings, contents, strict=True):
        put_all(sending, content.pieces(3000))
    for receiving, content in zip(receivings, contents, strict=True):
        assert bytes_of(await receiving.landed()) == content.expected()
        receiving.applied()
    for sending in sendings:
        assert (await sending.released()).cause == "applied"


async def two_ranks_make_one_cache(rig: Rig) -> None:
    """Each of two senders has half of the heads of everything that is sharded, the first all of what is not."""
    pair = await Pair.make(rig)
    other = await rig.transport("far0")
    content = Content(pair.layout, 150)
    sendings = [pair.offer("r.0", 150), other.offer(TransferId("r.0"), pair.layout, 150, LINK, LEASE_NS)]
    receiving = pair.receive("r.0", 150, remote=[rig.peer(pair.far), rig.peer(other)])
    parts = {(part.layer, part.name): part for part in pair.layout.parts}
    for extent, data in content.pieces(1 << 30):
        part = parts[extent.layer, extent.part]
        half = part.unit_bytes // 2
        if not part.sharded:
            sendings[0].put(extent, data)
            continue
        for rank, sending in enumerate(sendings):
            rows = len(data) // part.unit_bytes
            mine = b"".join(
                data[row * part.unit_bytes + rank * half : row * part.unit_bytes + (rank + 1) * half]
                for row in range(rows)
            )
            heads = (part.shape[0] // 2 * rank, part.shape[0] // 2 * (rank + 1))
            sending.put(Extent(*_place(extent), heads), memoryview(mine))
    for sending in sendings:
        sending.finish()
    assert bytes_of(await receiving.landed()) == content.expected()
    receiving.applied()
    outcomes = [await sending.released() for sending in sendings]
    assert [outcome.cause for outcome in outcomes] == ["applied", "applied"]
    whole = sum(len(data) for data in content.expected().values())
    assert sum(outcome.bytes_moved for outcome in outcomes) == (await receiving.ended()).bytes_moved == whole
    assert outcomes[0].bytes_moved > outcomes[1].bytes_moved > 0, "each is told what came from it"
    assert other.in_use == 0


async def an_engine_thread_may_put(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 900)
    sending, receiving = pair.offer("r.0", 900), pair.receive("r.0", 900)
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def engine() -> None:
        for extent, data in content.pieces(2000):
            sending.put(extent, data)
        loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=engine)
    thread.start()
    await done.wait()
    thread.join()
    sending.finish()
    await pair.settle(sending, receiving, content)


async def a_lost_connection_is_resumed_and_only_what_is_missing_comes_again(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 3000)
    pieces = content.pieces(5000)
    half = len(pieces) // 2
    sending, receiving = pair.offer("r.0", 3000), pair.receive("r.0", 3000, connections=3)
    for extent, data in pieces[:half]:
        sending.put(extent, data)
    await rig.received(pair.home, total(pieces[:half]))
    for _ in range(3):
        rig.cut(pair.home)
        rig.cut(pair.far)
        await asyncio.sleep(0)
    put_all(sending, pieces[half:])
    released, ended = await pair.settle(sending, receiving, content)
    # Everything of the first half had arrived, so nothing came twice.
    assert ended.bytes_moved == content.size()
    assert released.bytes_moved == content.size()


async def connections_cut_again_and_again_lose_nothing(rig: Rig) -> None:
    pair, chance = await Pair.make(rig), random.Random(11)
    content = Content(pair.layout, 2000)
    sending, receiving = pair.offer("r.0", 2000), pair.receive("r.0", 2000, connections=2)
    for number, (extent, data) in enumerate(content.pieces(3000)):
        sending.put(extent, data)
        if number % 25 == 10:
            for _ in range(chance.randrange(12)):
                await asyncio.sleep(0)
            rig.cut(chance.choice([pair.home, pair.far]))
    sending.finish()
    await pair.settle(sending, receiving, content)


async def a_sender_that_aborts_ends_the_receiver_at_once(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 400)
    sending, receiving = pair.offer("r.0", 400), pair.receive("r.0", 400)
    for extent, data in content.pieces(5000)[:3]:
        sending.put(extent, data)
    await rig.received(pair.home, 1)
    sending.abort("engine", "out of memory")
    error = await failure(receiving)
    assert isinstance(error, PeerFailure)
    assert (error.code, error.detail) == ("engine", "out of memory")
    assert (await sending.released()).cause == "engine"
    sending.abort("late", "harmless")
    put_all(sending, content.pieces(5000))
    assert pair.far.in_use == pair.home.in_use == 0
    await pair.move("r.1", content)


async def a_receiver_that_cancels_frees_the_sender_at_once(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 400)
    sending, receiving = pair.offer("r.0", 400), pair.receive("r.0", 400)
    for extent, data in content.pieces(5000)[:3]:
        sending.put(extent, data)
    await rig.received(pair.home, 1)
    receiving.cancel("client", "left before the first token")
    outcome = await sending.released()
    assert (outcome.cause, outcome.detail) == ("client", "left before the first token")
    assert (await failure(receiving)).code == "client"
    receiving.cancel("late", "harmless")
    assert pair.far.in_use == pair.home.in_use == 0
    await pair.move("r.1", content)


async def cancelling_after_landing_frees_the_buffers(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 100)
    sending, receiving = pair.offer("r.0", 100), pair.receive("r.0", 100)
    put_all(sending, content.pieces(5000))
    await receiving.landed()
    assert (await sending.released()).cause == "applied"
    receiving.cancel("client", "left")
    assert (await receiving.ended()).cause == "client"
    assert pair.home.in_use == 0


async def a_sender_that_vanishes_fails_the_receiver(rig: Rig) -> None:
    pair = await Pair.make(rig, patience_ns=SECOND // 5)
    content = Content(pair.layout, 400)
    sending = pair.offer("r.0", 400, lease_ns=SECOND // 5)
    receiving = pair.receive("r.0", 400)
    for extent, data in content.pieces(5000)[:3]:
        sending.put(extent, data)
    await rig.received(pair.home, 1)
    rig.vanish(pair.far)
    error = await failure(receiving)
    assert isinstance(error, PeerFailure)
    assert pair.home.in_use == 0


async def a_receiver_that_vanishes_is_freed_by_its_lease(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending, _ = pair.offer("r.0", 400, lease_ns=SECOND // 5), pair.receive("r.0", 400)
    sending.put(*Content(pair.layout, 400).pieces(5000)[0])
    await rig.received(pair.home, 1)
    rig.vanish(pair.home)
    assert (await sending.released()).cause == "lease"
    assert pair.far.in_use == 0


async def an_offer_that_nobody_takes_ends_with_its_lease(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending = pair.offer("r.0", 100, lease_ns=SECOND // 20)
    put_all(sending, Content(pair.layout, 100).pieces(5000))
    outcome = await sending.released()
    assert (outcome.cause, pair.far.in_use) == ("lease", 0)
    error = await failure(pair.receive("r.0", 100))
    assert error.code == "ended"
    assert "lease" in error.detail


async def life_signs_keep_a_slow_transfer_alive(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 100)
    sending = pair.offer("r.0", 100, lease_ns=SECOND // 5)
    receiving = pair.receive("r.0", 100)
    pieces = content.pieces(5000)
    sending.put(*pieces[0])
    # Longer than the lease without a byte of KV.
    await rig.passes(SECOND // 2)
    put_all(sending, pieces[1:])
    await pair.settle(sending, receiving, content)


async def a_deadline_ends_the_wait(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending = pair.offer("r.0", 100)
    receiving = pair.receive("r.0", 100, within_ns=SECOND // 10)
    assert (await failure(receiving)).code == "deadline"
    assert (await sending.released()).cause == "deadline"
    assert pair.far.in_use == pair.home.in_use == 0


async def putting_too_little_is_an_error_not_a_hang(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending, receiving = pair.offer("r.0", 100), pair.receive("r.0", 100, connections=3)
    put_all(sending, Content(pair.layout, 100).pieces(5000)[:-1])
    error = await failure(receiving)
    assert isinstance(error, ProtocolError)
    assert error.code == "incomplete"
    assert (await sending.released()).cause == "incomplete"


async def tickets_are_checked(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 100)
    sending = pair.offer("r.0", 100)
    bad = {
        "expired": pair.ticket("r.0", now=time.time() - 100),
        "transfer": pair.ticket("r.1"),
        "node": pair.ticket("r.0", node=NodeName("far1")),
        "epoch": pair.ticket("r.0", epoch=Epoch(2)),
        "receiver": pair.ticket("r.0", receiver=NodeName("home1")),
        "link": pair.ticket("r.0", link=LinkName("home->far")),
        "not valid": pair.ticket("r.0", secret=SECRET[::-1]),
        "valid": "",
    }
    for what, ticket in bad.items():
        error = await failure(pair.receive("r.0", 100, ticket=ticket))
        assert error.code == "ticket", what
        assert what in error.detail
    receiving = pair.receive("r.0", 100)
    put_all(sending, content.pieces(5000))
    await pair.settle(sending, receiving, content)


async def a_ticket_is_good_for_one_session(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content, ticket = Content(pair.layout, 100), pair.ticket("r.0")
    sending, receiving = pair.offer("r.0", 100), pair.receive("r.0", 100, ticket=ticket)
    sending.put(*content.pieces(5000)[0])
    await rig.received(pair.home, 1)
    assert (await failure(pair.receive("r.0", 100, ticket=ticket))).code == "session"
    put_all(sending, content.pieces(5000))
    await pair.settle(sending, receiving, content)
    assert (await failure(pair.receive("r.0", 100, ticket=ticket))).code == "session"


async def a_session_is_bound_while_it_waits_for_the_offer(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content, ticket = Content(pair.layout, 100), pair.ticket("r.0")
    receiving = pair.receive("r.0", 100, ticket=ticket, connections=1)
    await rig.passes(SECOND // 50)
    assert (await failure(pair.receive("r.0", 100, ticket=ticket, connections=1))).code == "session"
    sending = pair.offer("r.0", 100)
    put_all(sending, content.pieces(5000))
    await pair.settle(sending, receiving, content)


async def geometry_is_agreed_before_a_byte_moves(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending = pair.offer("r.0", 100)
    error = await failure(pair.receive("r.0", 100, layout=hybrid_layout(width=32)))
    assert error.code == "layout"
    assert "layer 0 k: shape (4, 32) here, (4, 16) there" in error.detail
    pair.offer("r.1", 100).abort("test", "over")
    other = pair.offer("r.2", 100)
    error = await failure(pair.receive("r.2", 99))
    assert error.code == "length"
    assert "99" in error.detail
    for one in (sending, other):
        one.abort("test", "over")
        assert (await one.released()).bytes_moved == 0


async def connections_are_reused(rig: Rig) -> None:
    pair = await Pair.make(rig)
    content = Content(pair.layout, 20)
    for number in range(100):
        await pair.move(f"r{number}.0", content, connections=2)
    assert rig.dialled(pair.home) <= 4


async def without_a_pace_a_paced_link_carries_nothing(rig: Rig) -> None:
    pair = await Pair.make(rig, paced=True)
    content = Content(pair.layout, 100)
    sending, receiving = pair.offer("r.0", 100), pair.receive("r.0", 100)
    put_all(sending, content.pieces(5000))
    await rig.passes(SECOND // 10)
    untouched: Any = receiving
    assert untouched.machine.coverage.missing_bytes == content.size()
    pair.far.pace(LINK, 10**9, 60 * SECOND, fence=2)
    await pair.settle(sending, receiving, content)
    pair.far.pace(LINK, 0, 60 * SECOND, fence=1)  # stale: ignored
    await pair.move("r.1", content)


async def misuse_by_our_own_side_is_told(rig: Rig) -> None:
    pair = await Pair.make(rig)
    sending = pair.offer("r.0", 100)
    await _raises(InHand, lambda: pair.offer("r.0", 100))
    receiving = pair.receive("r.0", 100)
    await _raises(InvariantError, receiving.applied)
    data = memoryview(bytes(4 * 16 * 4))
    for extent in (
        Extent(0, "q", 0, 1, (0, 4)),
        Extent(0, "k", 0, 2, (0, 4)),
        Extent(0, "k", 100, 101, (0, 4)),
        Extent(0, "k", 0, 1, (0, 5)),
    ):
        await _raises(LocalError, partial(sending.put, extent, data))
    sending.abort("test", "over")
    await failure(receiving)


async def _raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


async def closing_fails_what_is_open(rig: Rig) -> None:
    pair = await Pair.make(rig)
    receiving, sending = pair.receive("r.0", 100), pair.offer("r.0", 100)
    sending.put(*Content(pair.layout, 100).pieces(5000)[0])
    await rig.received(pair.home, 1)
    await pair.far.close()
    assert (await sending.released()).cause == "closed"
    assert (await failure(receiving)).code == "closed"
    await pair.home.close()


CHECKS: tuple[Callable[[Rig], Awaitable[None]], ...] = (
    every_byte_arrives_whoever_comes_first,
    order_and_duplicates_do_not_matter,
    pieces_by_head_meet_in_one_buffer,
    only_the_increment_moves,
    nothing_missing_lands_at_once,
    many_at_once_do_not_mix,
    two_ranks_make_one_cache,
    an_engine_thread_may_put,
    a_lost_connection_is_resumed_and_only_what_is_missing_comes_again,
    connections_cut_again_and_again_lose_nothing,
    a_sender_that_aborts_ends_the_receiver_at_once,
    a_receiver_that_cancels_frees_the_sender_at_once,
    cancelling_after_landing_frees_the_buffers,
    a_sender_that_vanishes_fails_the_receiver,
    a_receiver_that_vanishes_is_freed_by_its_lease,
    an_offer_that_nobody_takes_ends_with_its_lease,
    life_signs_keep_a_slow_transfer_alive,
    a_deadline_ends_the_wait,
    putting_too_little_is_an_error_not_a_hang,
    tickets_are_checked,
    a_ticket_is_good_for_one_session,
    a_session_is_bound_while_it_waits_for_the_offer,
    geometry_is_agreed_before_a_byte_moves,
    connections_are_reused,
    without_a_pace_a_paced_link_carries_nothing,
    misuse_by_our_own_side_is_told,
    closing_fails_what_is_open,
)
