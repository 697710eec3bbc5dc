"""One node's end of all its links, over ordered byte streams. It only wires; sockets or memory are its subclasses'.

It knows which transfers are open and hands connections to them. It does not know how a transfer goes, nor what a
stream is made of.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.errors import LocalError
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.core.transfer.extent import row_bytes
from prfaas.transport.base import InHand, Outcome, Peer
from prfaas.transport.stats import Counters, TransferStats
from prfaas.transport.stream.alarm import Alarm
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.greeter import Greeter, Offered
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.pacer import Pacer
from prfaas.transport.stream.pool import Pool
from prfaas.transport.stream.receiving import StreamReceiving
from prfaas.transport.stream.sending import StreamSending
from prfaas.wire.messages import MAX_CONNECTIONS, MAX_PAYLOAD_BYTES
from prfaas.wire.ticket import check_secret


class StreamTransport(ABC):
    """See `transport.base.Transport`. Lives on one event loop.

    `node` and `epoch` are this node's, as tickets name them; `secret` verifies tickets (None: none are asked for, and
    only loopback may listen). Links in `paced_links` send nothing before their first lease; others are free until
    they get one. `delays` are emulated one-way delays in ns, added to what is sent here.

    Raises ConfigError for a secret that is too short.
    """

    def __init__(
        self,
        node: NodeName,
        epoch: Epoch,
        secret: bytes | None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        paced_links: frozenset[LinkName] = frozenset(),
        delays: Mapping[LinkName, int] | None = None,
        stats: TransferStats | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        if secret is not None:
            check_secret(secret)
        self.node, self.epoch, self.secret = node, epoch, secret
        self.limits = limits or TransportLimits()
        self.stats: TransferStats = stats if stats is not None else Counters()
        self.alarm = Alarm(clock)
        self.pacer = Pacer(self.alarm, paced_links)
        self.pool = Pool(self.alarm, self.limits)
        self._delays = dict(delays or {})
        self._offers: dict[TransferId, Offered] = {}
        self._sendings: dict[TransferId, StreamSending] = {}
        self._receivings: set[StreamReceiving] = set()
        self._holding: set[StreamSending | StreamReceiving] = set()
        self._connections: set[Connection] = set()
        self._accepted: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.greeter = Greeter(
            node,
            epoch,
            secret,
            alarm=self.alarm,
            wall=wall,
            limits=self.limits,
            stats=self.stats,
            offers=self._offers,
        )

    @property
    def in_use(self) -> int:
        """Transfers that hold anything here, either direction."""
        return len(self._holding)

    @property
    def connections(self) -> tuple[Connection, ...]:
        """All that are open, whoever dialled."""
        return tuple(self._connections)

    @abstractmethod
    async def listen(self, host: str, port: int) -> Peer:
        """See `Transport.listen`."""

    @abstractmethod
    async def dial(self, peer: Peer, connection: Connection) -> None:
        """Connect `connection` to `peer`. Raises OSError."""

    @abstractmethod
    def close_listeners(self) -> None:
        """Accept nothing more."""

    def offer(
        self, transfer: TransferId, layout: KVLayout, length: int, link: LinkName, lease_ns: int, cached: int = 0
    ) -> StreamSending:
        """See `Transport.offer`."""
        if transfer in self._sendings:
            raise InHand(f"transfer {transfer} is in hand already")
        for part in layout.parts:
            least = row_bytes(part) if part.kind is PartKind.STATE else part.unit_bytes
            if least > MAX_PAYLOAD_BYTES:
                raise LocalError(f"layer {part.layer} {part.name}: {least} bytes cannot be cut to fit a frame")
        sending = StreamSending(self, transfer, layout, length, link, lease_ns, cached)
        self._sendings[transfer] = self._offers[transfer] = sending
        self._holding.add(sending)
        self.greeter.offered(transfer, sending)
        return sending

    def receive(
        self,
        transfer: TransferId,
        layout: KVLayout,
        length: int,
        remote: Sequence[Peer],
        ticket: str,
        *,
        held: int,
        connections: int,
        link: LinkName,
        deadline_ns: int,
    ) -> StreamReceiving:
        """See `Transport.receive`."""
        if not remote or not 1 <= connections <= MAX_CONNECTIONS:
            raise LocalError(f"{transfer}: {len(remote)} peers and {connections} connections")
        receiving = StreamReceiving(
            self, transfer, layout, length, remote, ticket, held, connections, link, deadline_ns
        )
        if not receiving.machine.over:
            self._receivings.add(receiving)
            self._holding.add(receiving)
        return receiving

    def pace(self, link: LinkName, rate_bps: int, lease_ns: int, fence: int) -> None:
        """See `Transport.pace`."""
        self.pacer.lease(link, rate_bps, lease_ns, fence)

    async def close(self) -> None:
        """See `Transport.close`."""
        self.close_listeners()
        for sending in list(self._sendings.values()):
            sending.abort("closed", f"{self.node} shuts down")
        for receiving in list(self._receivings):
            receiving.cancel("closed", f"{self.node} shuts down")
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = list(self._connections)
        for connection in connections:
            connection.finish()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1)
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=1)
        self.alarm.close()

    # For transfers.

    def delay_ns(self, link: LinkName) -> int:
        """Emulated one-way delay of `link`."""
        return self._delays.get(link, 0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` until it ends or the transport closes."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connect(self, peer: Peer) -> Connection:
        """A new connection to `peer`, within the time-out. Raises OSError."""
        connection = Connection(self.alarm, self.pool, self._keep)
        try:
            async with asyncio.timeout(self.limits.connect_ns / 1e9):
                await self.dial(peer, connection)
        except TimeoutError:
            connection.abort()
            raise OSError(f"{peer.host}:{peer.port} did not answer in time") from None
        except BaseException:
            connection.abort()
            raise
        self.stats.connected()
        return connection

    def accept(self) -> Connection:
        """A connection that somebody dialled; its stream comes with `connection_made`."""
        return Connection(self.alarm, self.greeter, self._opened)

    def sending_released(self, sending: StreamSending, outcome: Outcome) -> None:
        """`sending` holds nothing any more."""
        self._holding.discard(sending)
        self.stats.ended(sending.link, "sending", outcome)

    def sending_over(self, sending: StreamSending, cause: str, detail: str) -> None:
        """`sending` is over."""
        self._sendings.pop(sending.transfer, None)
        self._offers.pop(sending.transfer, None)
        self.greeter.ended(sending.transfer, cause, detail)

    def receiving_over(self, receiving: StreamReceiving, outcome: Outcome) -> None:
        """`receiving` is over."""
        self._receivings.discard(receiving)
        self._holding.discard(receiving)
        self.stats.ended(receiving.link, "receiving", outcome)

    def _opened(self, connection: Connection) -> None:
        if len(self._accepted) >= self.limits.connections:
            connection.abort()
            return
        self._accepted.add(connection)
        connection.closed.add_done_callback(lambda _: self._accepted.discard(connection))
        self._keep(connection)
        self.greeter.welcome(connection)

    def _keep(self, connection: Connection) -> None:
        self._connections.add(connection)
        connection.closed.add_done_callback(lambda _: self._connections.discard(connection))
