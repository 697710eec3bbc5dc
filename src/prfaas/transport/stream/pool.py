"""Dialled connections without a transfer, by peer, so that the next transfer finds them open.

It knows connections and how long each may idle; it does not know transfers. What is left over from the last transfer
(a late PONG, a COMPLETE that crossed with APPLIED) is read and dropped.
"""

from __future__ import annotations

import select

from prfaas.core.agenda import Entry
from prfaas.core.errors import ProtocolError
from prfaas.transport.base import Peer
from prfaas.transport.stream.alarm import Alarm, Call
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.limits import TransportLimits
from prfaas.wire.frame import Data
from prfaas.wire.messages import DataHead, Kind, Message

LEFT_OVER = frozenset({Kind.DATA, Kind.COMPLETE, Kind.CANCEL, Kind.PONG})
"""What a listener may have sent before it read APPLIED."""


class Pool:
    """Idle connections. The one used last is taken first."""

    def __init__(self, alarm: Alarm, limits: TransportLimits) -> None:
        self._alarm = alarm
        self._limits = limits
        self._idle: dict[Peer, list[Connection]] = {}
        self._timers: dict[Connection, Entry[Call]] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def take(self, peer: Peer) -> Connection | None:
        """An open connection to `peer`, or None. One that the peer has closed is noticed here at the latest."""
        idle = self._idle.get(peer, [])
        while idle:
            connection = idle.pop()
            self._forget(peer, connection)
            if connection.alive and not _hung_up(connection.fileno):
                return connection
            connection.abort()
        return None

    def put(self, peer: Peer, connection: Connection) -> None:
        """`connection` has no transfer any more."""
        if not connection.alive:
            connection.abort()  # its last owner is done with it and must not hear of its end
            return
        if len(self._idle.get(peer, [])) >= self._limits.idle_per_peer:
            connection.hang_up()
            return
        connection.give(self, LEFT_OVER)
        connection.delay_ns = 0
        connection.decoder.rest()  # hundreds may idle, and each has room for what came last
        self._idle.setdefault(peer, []).append(connection)
        until_ns = self._alarm.clock() + self._limits.idle_ns
        self._timers[connection] = self._alarm.at(until_ns, lambda: self._drop(connection))

    def close(self) -> None:
        """Close all that idle."""
        for connection in list(self._timers):
            self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self._forget_anywhere(connection)
        connection.hang_up()

    def _forget(self, peer: Peer, connection: Connection) -> None:
        self._alarm.cancel(self._timers.pop(connection, None))
        if not self._idle.get(peer):
            self._idle.pop(peer, None)

    def _forget_anywhere(self, connection: Connection) -> None:
        for peer, idle in list(self._idle.items()):
            if connection in idle:
                idle.remove(connection)
                self._forget(peer, connection)

    def on_read(self, connection: Connection, size: int, under_way: bool) -> None:
        """Nothing to do."""

    def place(self, connection: Connection, head: DataHead, size: int) -> memoryview | None:
        """Dropped."""
        return None

    def on_frame(self, connection: Connection, frame: Message | Data) -> None:
        """Left over; dropped."""

    def on_misuse(self, connection: Connection, error: ProtocolError) -> None:
        """Of no use any more."""
        self._drop(connection)

    def on_writable(self, connection: Connection) -> None:
        """Nothing to do."""

    def on_lost(self, connection: Connection, detail: str) -> None:
        """The peer closed it while idle."""
        self._forget_anywhere(connection)


def _hung_up(fileno: int) -> bool:
    """Whether the kernel knows already that the peer is gone, though the event loop has not looked yet."""
    if fileno < 0:
        return False
    poll = select.poll()
    poll.register(fileno, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))
