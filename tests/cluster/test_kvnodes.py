"""A head and its nodes' caches, over real sockets: nodes come, restart, go; and heads of two clusters."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import zmq
import zmq.asyncio

from prfaas.cli.ports import free_ports
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.kvnodes import KVNodes
from prfaas.cluster.roster import Sight
from prfaas.config.units import Endpoint
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Change
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place
from prfaas.engine.node.telling import Telling
from prfaas.model.blockhash import CacheKey, block_hashes
from prfaas.runtime.client import make_session
from prfaas.runtime.http import make_app, serve
from prfaas.runtime.kvpublish import KVPublisher
from prfaas.runtime.metrics import Metrics
from prfaas.testing.noderig import until
from prfaas.wire.control import Address, NodeInfo
from prfaas.wire.kvevents import decode

CLUSTER, NODE = ClusterName("far"), NodeName("p0")
PLACE = Place(CLUSTER, NODE)
SECRET = "what the programs share"
ROOT = CacheKey("model").root()
TOKENS = list(range(256))
EPOCHS = itertools.count(1)


class Publishing:
    """A node that keeps prefixes in blocks of 64 tokens."""

    def __init__(self, dial: Endpoint) -> None:
        self.epoch = next(EPOCHS)
        self.telling = Telling(ROOT)
        self.publisher = KVPublisher(
            NODE,
            Epoch(self.epoch),
            dial,
            replay=Endpoint.at("127.0.0.1", 0),
            secret=SECRET,
            snapshot=self.telling.snapshot,
        )
        self.telling.publish = self.publisher.publish
        self.task = asyncio.create_task(self.publisher.run())

    def keep(self, blocks: int) -> None:
        """The first blocks of TOKENS."""
        ends = self.telling.ends(TOKENS, 64, (0, range(blocks)), {})
        self.telling.settle(dict.fromkeys(range(blocks), True), ends)

    @property
    def sight(self) -> Sight:
        return sight(self.epoch, [Address("127.0.0.1", self.publisher.replay_port)])

    async def close(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def sight(epoch: int, answers: list[Address]) -> Sight:
    info = NodeInfo(NODE, CLUSTER, "prefill", epoch, "model", "", 1000, 1, [], kv_events=answers)
    return Sight(NODE, Epoch(epoch), info, "")


class Watched:
    """Stands for a roster: tests say who is there."""

    def watch(self, watcher: Any) -> None:
        """See `Roster.watch`."""


class Head:
    """The head of `far`. `foreign`: see `KVNodes`."""

    def __init__(self, foreign: Mapping[NodeName, Endpoint | None] | None = None) -> None:
        self.at = Endpoint.at("127.0.0.1", free_ports(1, set())[0])
        self.changed = asyncio.Event()
        self.exchange = Telltale(self.changed)
        self.metrics = Metrics()
        watched: Any = Watched()
        self.nodes = KVNodes(
            self.exchange,
            self.at,
            watched,
            lambda salt, adapter: ROOT,
            self.metrics,
            foreign=foreign or {},
            secret=SECRET,
        )

    def usable(self, index: PrefixIndex | None = None) -> int:
        return (index or self.exchange.index).usable(block_hashes(TOKENS, ROOT)).in_cluster(CLUSTER)

    @property
    def known(self) -> Known | None:
        return self.exchange.index.places().get(PLACE, (0, None))[1]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


class Telltale(KVExchange):
    def __init__(self, changed: asyncio.Event) -> None:
        super().__init__(CLUSTER, PrefixIndex())
        self._told = changed

    def change(self, change: Change) -> None:
        super().change(change)
        self._told.set()


@contextlib.asynccontextmanager
async def running(head: Head) -> AsyncIterator[None]:
    task = asyncio.create_task(head.nodes.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_what_a_node_held_before_it_was_met_and_what_it_keeps_after() -> None:
    head = Head()
    async with running(head):
        node = Publishing(head.at)
        node.keep(2)
        head.nodes.member(node.sight)
        assert head.known is Known.UNKNOWN
        await head.until(lambda: head.known is Known.WHOLLY)
        assert head.usable() == 128
        node.keep(3)  # blocks 0 and 1 change hands, which is no change
        await head.until(lambda: head.usable() == 192)
        await node.close()


async def test_a_restart_and_the_end() -> None:
    head = Head()
    async with running(head):
        first = Publishing(head.at)
        first.keep(4)
        head.nodes.member(first.sight)
        await head.until(lambda: head.usable() == 256)
        await first.close()
        again = Publishing(head.at)
        head.nodes.member(again.sight)
        assert (head.known, head.usable()) == (Known.UNKNOWN, 0)
        await head.until(lambda: head.known is Known.WHOLLY)
        again.keep(1)
        await head.until(lambda: head.usable() == 64)
        head.nodes.gone(NODE)
        assert (head.known, head.usable()) == (None, 0)
        head.nodes.member(again.sight)
        await head.until(lambda: head.usable() == 64)
        await again.close()


async def test_a_node_that_keeps_nothing_is_known_to() -> None:
    head = Head()
    async with running(head):
        head.nodes.member(sight(1, []))
        assert head.known is Known.WHOLLY
        node = Publishing(head.at)
        node.keep(1)
        head.nodes.member(node.sight)
        await head.until(lambda: head.usable() == 64)
        await node.close()


async def test_two_heads() -> None:
    """The other one knows nothing, then all; nothing again when the first one restarts, and all once more."""
    head = Head()
    app = make_app(max_body_bytes=1 << 20, keys=(SECRET,))
    head.exchange.add_to(app.router)
    listening = await serve(app, "127.0.0.1", 0, grace_s=0.1)
    other = KVExchange(ClusterName("home"), PrefixIndex())

    async with running(head), make_session(SECRET) as session:
        following = asyncio.create_task(other.follow(CLUSTER, listening.url, session, pause_s=0.01))
        node = Publishing(head.at)
        node.keep(2)
        head.nodes.member(node.sight)
        await until(lambda: head.usable(other.index) == 128)
        assert other.index.places()[PLACE][1] is Known.WHOLLY
        await listening.close()
        anew = Head()
        app = make_app(max_body_bytes=1 << 20, keys=(SECRET,))
        anew.exchange.add_to(app.router)
        listening = await serve(app, "127.0.0.1", listening.port, grace_s=0.1)
        await until(lambda: not other.index.places())
        async with running(anew):
            anew.nodes.member(node.sight)  # it still publishes elsewhere, and answers whoever asks
            await until(lambda: head.usable(other.index) == 128)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await node.close()
        await listening.close()


async def test_who_subscribes_late_hears_where_it_stands() -> None:
    at = Endpoint.at("127.0.0.1", free_ports(1, set())[0])
    node = Publishing(at)
    node.keep(1)  # to nobody
    node.keep(2)
    with zmq.asyncio.Context.instance().socket(zmq.SUB) as late:
        late.setsockopt(zmq.SUBSCRIBE, NODE.encode())
        late.bind(f"tcp://{at}")
        async with asyncio.timeout(30):
            heard = decode([bytes(frame) for frame in await late.recv_multipart()])
    assert (heard.sequence, heard.epoch) == (node.publisher.published - 1, node.epoch)
    await node.close()
