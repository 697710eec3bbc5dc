"""The memory transport: `StreamTransport` within one process, over pipes that behave as sockets do.

It knows asyncio's transport interface, byte for byte, back-pressure and all; frames and transfers are the same code
as over TCP. For tests, and for several nodes in one process.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from prfaas.core.ids import Epoch, LinkName, NodeName
from prfaas.transport.base import Peer
from prfaas.transport.stats import TransferStats
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.transport import StreamTransport

_STEP_BYTES = 256 * 1024


class MemoryNetwork:
    """Which address is whose. Transports that share one reach each other."""

    def __init__(self) -> None:
        self._listeners: dict[Peer, Callable[[], Connection]] = {}
        self._ports = 1

    def listen(self, host: str, port: int, accept: Callable[[], Connection]) -> Peer:
        """Bind; port 0 is any. Raises OSError when the address is taken."""
        if port == 0:
            port, self._ports = self._ports, self._ports + 1
        peer = Peer(host, port)
        if peer in self._listeners:
            raise OSError(f"{host}:{port} is in use")
        self._listeners[peer] = accept
        return peer

    def unlisten(self, peer: Peer) -> None:
        """Unbind."""
        self._listeners.pop(peer, None)

    def connect(self, peer: Peer, connection: Connection) -> None:
        """Join `connection` to a new one of whoever listens at `peer`. Raises ConnectionRefusedError."""
        accept = self._listeners.get(peer)
        if accept is None:
            raise ConnectionRefusedError(f"nobody listens at {peer.host}:{peer.port}")
        far = accept()
        ours, theirs = _Pipe(connection), _Pipe(far)
        ours.other, theirs.other = theirs, ours
        far.connection_made(theirs)
        connection.connection_made(ours)


class _Pipe(asyncio.Transport):
    """One end. What is written waits here until the loop carries it to the other end."""

    def __init__(self, protocol: Connection) -> None:
        super().__init__()
        self.other: _Pipe
        self._protocol = protocol
        self._loop = asyncio.get_running_loop()
        self._queue: deque[memoryview] = deque()
        self._size = 0
        self._high = 64 * 1024
        self._paused = self._scheduled = self._closing = self._eof = self._eof_sent = self._lost = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else self._high

    def get_write_buffer_size(self) -> int:
        return self._size

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._closing or self._eof or not data:
            return
        view = memoryview(data)
        self._queue.append(view)
        self._size += len(view)
        if self._size > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()
        self._schedule()

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._eof = True
        self._schedule()

    def close(self) -> None:
        self._eof = True
        self._closing = True
        self._schedule()

    def abort(self) -> None:
        self._closing = True
        self._queue.clear()
        self._loop.call_soon(self._lose, None)
        self._loop.call_soon(self.other._reset)

    def _schedule(self) -> None:
        if not self._scheduled and not self._lost:
            self._scheduled = True
            self._loop.call_soon(self._carry)

    def _carry(self) -> None:
        self._scheduled = False
        if self._lost:
            return
        far = self.other
        step = _STEP_BYTES
        while self._queue and step > 0 and not far._lost:
            view = self._queue.popleft()
            room = far._protocol.get_buffer(-1)
            count = min(len(room), len(view), step)
            room[:count] = view[:count]
            if count < len(view):
                self._queue.appendleft(view[count:])
            self._size -= count
            step -= count
            far._protocol.buffer_updated(count)
        if self._paused and self._size <= self._high // 4 and not self._lost:
            self._paused = False
            self._protocol.resume_writing()
        if self._queue:
            self._schedule()
        elif self._eof and not self._eof_sent:
            self._eof_sent = True
            if not far._lost:
                far._protocol.eof_received()
            if self._closing:
                self._lose(None)

    def _reset(self) -> None:
        self._lose(ConnectionResetError("reset by the peer"))

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = self._closing = True
            self._queue.clear()
            self._protocol.connection_lost(error)


class MemoryTransport(StreamTransport):
    """See `StreamTransport` for the arguments."""

    def __init__(
        self,
        node: NodeName,
        epoch: Epoch,
        secret: bytes | None,
        network: MemoryNetwork,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        paced_links: frozenset[LinkName] = frozenset(),
        delays: Mapping[LinkName, int] | None = None,
        stats: TransferStats | None = None,
        limits: TransportLimits | None = None,
    ) -> None:
        super().__init__(
            node,
            epoch,
            secret,
            clock=clock,
            wall=wall,
            paced_links=paced_links,
            delays=delays,
            stats=stats,
            limits=limits,
        )
        self._network = network
        self._bound: list[Peer] = []

    async def listen(self, host: str, port: int) -> Peer:
        """See `Transport.listen`."""
        peer = self._network.listen(host, port, self.accept)
        self._bound.append(peer)
        return peer

    async def dial(self, peer: Peer, connection: Connection) -> None:
        """See `StreamTransport.dial`."""
        self._network.connect(peer, connection)

    def close_listeners(self) -> None:
        """See `StreamTransport.close_listeners`."""
        for peer in self._bound:
            self._network.unlisten(peer)
        self._bound.clear()
