"""Publishers and followers over real sockets: joining late, gaps, restarts, secrets."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Callable

import pytest
import zmq
import zmq.asyncio
from tests.freeports import free_endpoint

from prfaas.cluster.kvevents import KVEventsReader
from prfaas.cluster.kvfollow import KVFollower
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Change, Closed, apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place
from prfaas.model.blockhash import CacheKey, block_hashes
from prfaas.runtime.kvpublish import KVPublisher
from prfaas.runtime.metrics import Metrics
from prfaas.wire.kvevents import AllCleared, BlocksRemoved, BlocksStored, KVEvent, KVEvents

NODE = NodeName("p0")
PLACE = Place(ClusterName("c"), NODE)
ROOT = CacheKey("model").root()
EPOCHS = itertools.count(1)


async def let_go(at: Endpoint) -> None:
    """ZeroMQ closes a listener on a thread of its own, some time after it was told to."""
    async with asyncio.timeout(30):
        while True:
            with socket.socket() as probe, contextlib.suppress(OSError):
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((at.host, at.port))
                return
            await asyncio.sleep(0)


class Engine:
    """Holds prompts of `size`-token blocks, and publishes what it holds. Its hashes are numbers of its own, or
    canonical."""

    def __init__(self, dial: Endpoint, replay: Endpoint | None, *, ours: bool = True, **more: object) -> None:
        self.ours = ours
        self.held: dict[int, BlocksStored] = {}
        snapshot = self.snapshot if ours else None
        self.publisher = KVPublisher(NODE, Epoch(next(EPOCHS)), dial, replay=replay, snapshot=snapshot, **more)  # type: ignore[arg-type]
        self.task = asyncio.create_task(self.publisher.run())

    def snapshot(self) -> list[KVEvent]:
        return list(self.held.values())

    def store(self, number: int, blocks: int = 2) -> None:
        ids = tokens_of(number, blocks)
        hashes = block_hashes(ids, ROOT)
        names = tuple(hashes if self.ours else (one ^ 0xFFFF for one in hashes))
        event = BlocksStored(names, None, tuple(ids), 64)
        self.held[number] = event
        self.publisher.publish(event)

    def remove(self, number: int) -> None:
        self.publisher.publish(BlocksRemoved(self.held.pop(number).hashes))

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def tokens_of(number: int, blocks: int = 2) -> list[int]:
    return [number * 1000 + at for at in range(blocks * 64)]


class Head:
    """Hears, follows and indexes. Messages in `lost` never arrive."""

    def __init__(self, replay: Endpoint | None, *, ours: bool = True, secret: str = "") -> None:
        self.at = free_endpoint()
        self.index = PrefixIndex()
        self.changes: list[Change] = []
        self.changed = asyncio.Event()
        self.lost: set[int] = set()
        self.heard = 0
        addresses = {NODE: replay} if replay is not None else {}
        self.follower = KVFollower(
            PLACE.cluster,
            self.change,
            lambda salt, adapter: ROOT,
            replay=addresses,
            ours=[NODE] if ours else [],
            secret=secret,
            answer_s=20 if secret == "" else 0.2,
            check_s=3600,
        )
        self.reader = KVEventsReader(self.at, [NODE], Metrics(), self.hear)
        self.tasks = [asyncio.create_task(self.reader.run()), asyncio.create_task(self.follower.run())]

    def hear(self, node: NodeName, events: KVEvents) -> None:
        self.heard += 1
        if events.sequence not in self.lost:
            self.follower.heard(node, events)
        self.changed.set()

    def change(self, change: Change) -> None:
        self.changes.append(change)
        apply(self.index, change)
        self.changed.set()

    def known(self) -> Known | None:
        return self.index.places().get(PLACE, (0, None))[1]

    def usable(self, number: int) -> int:
        return self.index.usable(block_hashes(tokens_of(number), ROOT)).in_cluster(PLACE.cluster) // 64

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.changed.clear()
                await self.changed.wait()

    async def hears(self, engine: Engine) -> None:
        """Until messages arrive: a publisher drops what it has until the subscription is known to it."""
        async with asyncio.timeout(30):
            while not self.heard:
                engine.publisher.publish()
                self.changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self.changed.wait()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def pair(**more: object) -> AsyncIterator[tuple[Engine, Head]]:
    replay = free_endpoint()
    ours = bool(more.pop("ours", True))
    head = Head(replay, ours=ours)
    engine = Engine(head.at, replay, ours=ours, **more)
    try:
        yield engine, head
    finally:
        await engine.close()
        await head.close()


async def test_who_joins_late_gets_a_snapshot() -> None:
    replay = free_endpoint()
    early = free_endpoint()
    engine = Engine(early, replay, buffer_messages=1)
    for number in range(5):
        engine.store(number)
    engine.remove(3)
    head = Head(replay)
    try:
        await head.until(lambda: head.known() is Known.WHOLLY)
        assert [head.usable(number) for number in range(5)] == [2, 2, 2, 0, 2]
    finally:
        await engine.close()
        await head.close()


@pytest.mark.parametrize("ours", [True, False])
async def test_a_gap_is_replayed(ours: bool) -> None:
    async with pair(ours=ours) as (engine, head):
        await head.hears(engine)
        await head.until(lambda: head.known() is Known.WHOLLY)
        engine.store(1)
        await head.until(lambda: head.usable(1) == 2)
        head.lost.update(range(engine.publisher.published, engine.publisher.published + 2))
        engine.remove(1)
        engine.store(2)
        engine.store(3)
        await head.until(lambda: head.usable(3) == 2)
        await head.until(lambda: head.known() is Known.WHOLLY)
        assert [head.usable(number) for number in (1, 2, 3)] == [0, 2, 2]


async def test_a_gap_that_is_gone_from_the_buffer_is_unknown() -> None:
    async with pair(ours=False, buffer_messages=1) as (engine, head):
        await head.hears(engine)
        await head.until(lambda: head.known() is not Known.UNKNOWN)
        engine.store(1)
        engine.store(2)
        await head.until(lambda: head.usable(2) == 2)
        head.lost.update(range(engine.publisher.published, engine.publisher.published + 2))
        engine.remove(1)
        engine.store(3)
        engine.store(4)
        await head.until(lambda: head.usable(4) == 2)
        await head.until(lambda: head.known() is Known.PARTLY)
        assert [head.usable(number) for number in (1, 2, 3, 4)] == [0, 0, 0, 2]
        engine.publisher.publish(AllCleared())
        await head.until(lambda: head.known() is Known.WHOLLY)
        assert head.usable(4) == 0


async def test_a_restart_is_another_incarnation() -> None:
    replay = free_endpoint()
    head = Head(replay)
    engine = Engine(head.at, replay)
    try:
        await head.hears(engine)
        engine.store(1)
        await head.until(lambda: head.usable(1) == 2)
        await engine.close()
        await let_go(replay)
        head.heard = 0
        engine = Engine(head.at, replay)
        await head.hears(engine)
        engine.store(2)
        await head.until(lambda: head.usable(2) == 2)
        await head.until(lambda: head.known() is Known.WHOLLY)
        assert head.usable(1) == 0
        assert head.index.places()[PLACE][0] > 1
        head.follower.restarted(NODE, Epoch(10**9))
        assert head.index.usable(block_hashes(tokens_of(2), ROOT)).unknown == (PLACE,)
        await head.until(lambda: head.known() is Known.WHOLLY and head.usable(2) == 2)
        head.follower.gone(NODE)
        assert head.changes[-1] == Closed(PLACE)
        assert head.index.blocks == 0
    finally:
        await engine.close()
        await head.close()


async def test_a_node_that_can_be_asked_nothing() -> None:
    head = Head(None)
    engine = Engine(head.at, None)
    try:
        engine.store(1)
        await head.hears(engine)
        engine.store(2)
        await head.until(lambda: head.usable(2) == 2)
        assert head.known() is Known.PARTLY
        assert head.usable(1) in (0, 2)  # whether it was heard is chance
    finally:
        await engine.close()
        await head.close()


async def test_silence_is_checked() -> None:
    async with pair() as (engine, head):
        await head.hears(engine)
        await head.until(lambda: head.known() is Known.WHOLLY)
        head.lost.add(engine.publisher.published)
        before = head.heard
        engine.store(1)
        await head.until(lambda: head.heard > before)
        assert head.usable(1) == 0
        head.follower.check()  # something was heard since the last one
        head.follower.check()
        await head.until(lambda: head.usable(1) == 2)
        assert head.known() is Known.WHOLLY


async def test_who_does_not_show_the_secret_gets_no_answer() -> None:
    replay = free_endpoint()
    engine = Engine(free_endpoint(), replay, secret="right")
    engine.store(1)
    wrong, right = Head(replay, secret="wrong"), Head(replay, secret="right")
    try:
        await right.until(lambda: right.known() is Known.WHOLLY)
        assert right.usable(1) == 2
        assert wrong.usable(1) == 0
        assert wrong.known() is Known.UNKNOWN
    finally:
        await engine.close()
        await right.close()
        await wrong.close()


def test_off_loopback_a_secret_is_demanded() -> None:
    with pytest.raises(ConfigError, match="not on loopback; expected a secret"):
        KVPublisher("n", Epoch(1), free_endpoint(), replay=Endpoint("0.0.0.0:5555"))


async def test_an_address_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = Endpoint.at("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"cannot listen on {at}"):
            KVPublisher("n", Epoch(1), free_endpoint(), replay=at)


async def test_rubbish_does_not_end_a_publisher() -> None:
    replay = free_endpoint()
    engine = Engine(free_endpoint(), replay)
    engine.store(1)
    dealer = zmq.asyncio.Context.instance().socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    try:
        dealer.connect(f"tcp://{replay}")
        await dealer.send_multipart([b"", b"short"])
        await dealer.send_multipart([b"x"] * 9)
        await dealer.send_multipart([b"", bytes(8)])
        async with asyncio.timeout(20):
            frames = [await dealer.recv_multipart(), await dealer.recv_multipart()]
        assert [int.from_bytes(one[-2], "big", signed=True) for one in frames] == [0, -1]
    finally:
        dealer.close()
        await engine.close()
