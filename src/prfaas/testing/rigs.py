"""Rigs for the transport conformance suite: TCP on loopback, and memory.

It knows both transports and how to break them; it does not know the checks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from prfaas.core.ids import Epoch, LinkName, NodeName
from prfaas.core.transfer.receiver import Patience
from prfaas.testing.conformance import LINK, SECOND, SECRET
from prfaas.transport.base import Peer, Transport
from prfaas.transport.memory import MemoryNetwork, MemoryTransport
from prfaas.transport.stats import Counters
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.transport import StreamTransport
from prfaas.transport.tcp import TcpTransport


class Watched(Counters):
    """Counters that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = asyncio.Event()

    def received(self, link: LinkName, size_bytes: int) -> None:
        super().received(link, size_bytes)
        self._changed.set()

    async def until_received(self, size_bytes: int) -> None:
        """Until so many KV bytes came in."""
        while self.received_bytes.total() < size_bytes:
            self._changed.clear()
            await self._changed.wait()


class StreamRig:
    """See `conformance.Rig`. `close` ends it, and tells whether anything was still held."""

    def __init__(self, make: Callable[..., StreamTransport], clock: Callable[[], int]) -> None:
        self._make = make
        self._clock = clock
        self.transports: dict[StreamTransport, Peer] = {}

    async def transport(
        self, node: str, *, paced: bool = False, patience_ns: int = 15 * SECOND, **options: Any
    ) -> StreamTransport:
        """See `conformance.Rig`; `options` go to the transport."""
        options.setdefault("limits", TransportLimits(patience=Patience(lease_ns=patience_ns)))
        options.setdefault("stats", Watched())
        links = frozenset({LINK}) if paced else frozenset()
        made = self._make(NodeName(node), Epoch(1), SECRET, clock=self._clock, paced_links=links, **options)
        self.transports[made] = await made.listen("127.0.0.1", 0)
        return made

    def peer(self, transport: Transport) -> Peer:
        """See `conformance.Rig`."""
        assert isinstance(transport, StreamTransport)
        return self.transports[transport]

    def cut(self, transport: Transport) -> None:
        """See `conformance.Rig`."""
        assert isinstance(transport, StreamTransport)
        for connection in transport.connections:
            connection.reset()

    def vanish(self, transport: Transport) -> None:
        """See `conformance.Rig`."""
        assert isinstance(transport, StreamTransport)
        transport.alarm.close()
        transport.close_listeners()
        for connection in transport.connections:
            connection.go_silent()
        del self.transports[transport]

    def dialled(self, transport: Transport) -> int:
        """See `conformance.Rig`."""
        assert isinstance(transport, StreamTransport)
        assert isinstance(transport.stats, Counters)
        return transport.stats.dialled

    def now_ns(self) -> int:
        """See `conformance.Rig`."""
        return self._clock()

    async def received(self, transport: Transport, size_bytes: int) -> None:
        """See `conformance.Rig`."""
        assert isinstance(transport, StreamTransport)
        assert isinstance(transport.stats, Watched)
        async with asyncio.timeout(30):
            await transport.stats.until_received(size_bytes)

    async def passes(self, span_ns: int) -> None:
        """See `conformance.Rig`."""
        await asyncio.sleep(span_ns / SECOND)

    async def close(self) -> int:
        """Close all transports; how many transfers they still held before."""
        held = sum(transport.in_use for transport in self.transports)
        await asyncio.gather(*(transport.close() for transport in self.transports))
        return held


def tcp_rig() -> StreamRig:
    """TCP on loopback, real time."""
    return StreamRig(TcpTransport, time.monotonic_ns)


def memory_rig() -> StreamRig:
    """Memory, on the running loop's time (which may be virtual)."""
    network, loop = MemoryNetwork(), asyncio.get_running_loop()

    def make(node: NodeName, epoch: Epoch, secret: bytes | None, **options: Any) -> MemoryTransport:
        return MemoryTransport(node, epoch, secret, network, **options)

    return StreamRig(make, lambda: int(loop.time() * SECOND))
