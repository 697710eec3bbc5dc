"""The listening side's door: who may fetch what, before a transfer exists and after it ended.

It knows tickets, sessions and bounds. It does not know chunks: a HELLO that is good is handed to the transfer it
names, or parked until that is offered. The order of checks is in `docs/wire.md`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Protocol

from prfaas.core.agenda import Entry
from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ProtocolError
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.transport.stats import TransferStats
from prfaas.transport.stream.alarm import Alarm, Call
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.limits import TransportLimits
from prfaas.wire.frame import Data
from prfaas.wire.layout import layout_body
from prfaas.wire.messages import VERSION, Cancel, DataHead, Hello, Kind, Message, Ping, Pong, Refuse, clipped
from prfaas.wire.ticket import verify

GREETING = frozenset({Kind.HELLO})
PARKED = frozenset({Kind.PING, Kind.CANCEL})


class Offered(Protocol):
    """A transfer that a HELLO can be handed to."""

    layout: KVLayout
    fingerprint: str
    length: int
    link: LinkName

    def admit(self, connection: Connection, hello: Hello) -> None:
        """The ticket is good, and geometry agrees; the connection is the transfer's to welcome or refuse."""


@dataclass(slots=True)
class _Parked:
    connection: Connection
    hello: Hello
    link: LinkName | None
    timer: Entry[Call]


class _Memory:
    """Names that are remembered until a time, the oldest forgotten when there are too many."""

    def __init__(self, clock: Callable[[], int], limit: int) -> None:
        self._clock = clock
        self._limit = limit
        self._items: OrderedDict[str, tuple[int, str]] = OrderedDict()

    def get(self, name: str) -> str | None:
        until_ns, value = self._items.get(name, (0, ""))
        return value if until_ns > self._clock() else None

    def keep(self, name: str, value: str, until_ns: int) -> None:
        self._items[name] = (until_ns, value)
        self._items.move_to_end(name)
        while self._items and (len(self._items) > self._limit or next(iter(self._items.values()))[0] <= self._clock()):
            self._items.popitem(last=False)

    def drop(self, name: str) -> None:
        self._items.pop(name, None)


class Greeter:
    """All accepted connections that belong to no transfer."""

    def __init__(
        self,
        node: NodeName,
        epoch: Epoch,
        secret: bytes | None,
        *,
        alarm: Alarm,
        wall: Callable[[], float],
        limits: TransportLimits,
        stats: TransferStats,
        offers: dict[TransferId, Offered],
    ) -> None:
        self._node, self._epoch, self._secret = node, epoch, secret
        self._alarm, self._wall, self._limits, self._stats = alarm, wall, limits, stats
        self._offers = offers
        self._waiting: dict[Connection, Entry[Call]] = {}
        self._parked: dict[TransferId, list[_Parked]] = {}
        self._sessions = _Memory(alarm.clock, limits.remembered)
        self._ended = _Memory(alarm.clock, limits.remembered)

    @property
    def waiting(self) -> int:
        """Connections that have not said HELLO, and those that wait for the next one."""
        return len(self._waiting)

    @property
    def parked(self) -> int:
        """Connections whose transfer is not offered yet."""
        return sum(len(parked) for parked in self._parked.values())

    def welcome(self, connection: Connection) -> None:
        """A new connection: it has `hello_ns` to say HELLO."""
        if len(self._waiting) >= self._limits.greeting:
            oldest = next(iter(self._waiting))
            self._turn_away(oldest)
        self._wait(connection, self._limits.hello_ns)

    def back(self, connection: Connection) -> None:
        """A connection whose transfer is over: it may say the next HELLO."""
        if not connection.alive:
            connection.abort()  # its last owner is done with it and must not hear of its end
            return
        connection.delay_ns = 0
        self._wait(connection, self._limits.idle_ns * 3 // 2)

    def offered(self, transfer: TransferId, offer: Offered) -> None:
        """`transfer` is offered from now: admit who waits for it."""
        self._ended.drop(transfer)
        for parked in self._parked.pop(transfer, []):
            self._alarm.cancel(parked.timer)
            if parked.connection.alive:
                self._check(parked.connection, parked.hello, parked.link, offer)

    def ended(self, transfer: TransferId, code: str, detail: str) -> None:
        """`transfer` is over: late HELLOs are told why."""
        why = (detail and f"{code}: {detail}") or code
        self._ended.keep(transfer, why, self._alarm.clock() + self._limits.forget_ns)

    def refuse(self, connection: Connection, code: str, detail: str, layout: KVLayout | None = None) -> None:
        """Say why not, and close."""
        self._stats.refused(code)
        body = layout_body(layout) if layout is not None else None
        connection.send(Refuse(clipped(code, 64), clipped(detail), body))
        connection.hang_up()

    def on_read(self, connection: Connection, size: int, under_way: bool) -> None:
        """Nothing to do."""

    def place(self, connection: Connection, head: DataHead, size: int) -> memoryview | None:
        """No payload comes here."""
        return None

    def on_frame(self, connection: Connection, frame: Message | Data) -> None:
        """HELLO; and from those parked PING and CANCEL."""
        match frame:
            case Hello():
                self._alarm.cancel(self._waiting.pop(connection, None))
                self._hello(connection, frame)
            case Ping():
                connection.send(Pong())
            case Cancel():
                self._unpark(connection)
                connection.hang_up()
            case _:
                raise ProtocolError("order", f"{type(frame).__name__} may not come now")

    def on_misuse(self, connection: Connection, error: ProtocolError) -> None:
        """Refused: with the reason, as the other side may be an honest one of another version."""
        self._gone(connection)
        self.refuse(connection, error.code, error.detail)

    def on_writable(self, connection: Connection) -> None:
        """Nothing to do."""

    def on_lost(self, connection: Connection, detail: str) -> None:
        """It went away by itself."""
        self._gone(connection)

    def _wait(self, connection: Connection, wait_ns: int) -> None:
        connection.give(self, GREETING)
        until_ns = self._alarm.clock() + wait_ns
        self._waiting[connection] = self._alarm.at(until_ns, lambda: self._turn_away(connection))

    def _turn_away(self, connection: Connection) -> None:
        self._gone(connection)
        connection.hang_up()

    def _gone(self, connection: Connection) -> None:
        self._alarm.cancel(self._waiting.pop(connection, None))
        self._unpark(connection)

    def _unpark(self, connection: Connection) -> None:
        for transfer, parked in list(self._parked.items()):
            for one in parked:
                if one.connection is connection:
                    self._alarm.cancel(one.timer)
            kept = [one for one in parked if one.connection is not connection]
            if kept:
                self._parked[transfer] = kept
            else:
                del self._parked[transfer]

    def _hello(self, connection: Connection, hello: Hello) -> None:
        if hello.version != VERSION:
            return self.refuse(connection, "version", f"version {hello.version}; spoken here: {VERSION}")
        if hello.direction != "to-dialler":
            return self.refuse(connection, "direction", f"{hello.direction!r} is not served here")
        if hello.connection >= hello.connections:
            return self.refuse(connection, "body", f"connection {hello.connection} of {hello.connections}")
        transfer = TransferId(hello.transfer)
        link: LinkName | None = None
        until_ns = self._alarm.clock() + self._limits.park_ns
        if self._secret is not None:
            try:
                claims = verify(
                    self._secret,
                    hello.ticket,
                    transfer=transfer,
                    epoch=self._epoch,
                    node=self._node,
                    receiver=NodeName(hello.receiver),
                    now=self._wall(),
                )
            except ProtocolError as error:
                return self.refuse(connection, error.code, error.detail)
            link = claims.link
            until_ns = self._alarm.clock() + int((claims.expires - self._wall()) * 1e9)
        offer = self._offers.get(transfer)
        if offer is not None and link is not None and link != offer.link:
            return self.refuse(connection, "ticket", f"for the link {link}, offered on {offer.link}")
        bound = self._sessions.get(transfer)
        if bound is not None and not compare_digest(bound.encode(), hello.session.encode()):
            return self.refuse(connection, "session", "the ticket is in use by another receiver session")
        self._sessions.keep(transfer, hello.session, max(until_ns, self._alarm.clock() + self._limits.forget_ns))
        why = self._ended.get(transfer)
        if why is not None:
            return self.refuse(connection, "ended", why)
        if offer is not None:
            return self._check(connection, hello, link, offer)
        return self._park(connection, hello, link, until_ns)

    def _check(self, connection: Connection, hello: Hello, link: LinkName | None, offer: Offered) -> None:
        if link is not None and link != offer.link:
            return self.refuse(connection, "ticket", f"for the link {link}, offered on {offer.link}")
        if hello.layout != offer.fingerprint:
            return self.refuse(connection, "layout", "the KV layouts differ", offer.layout)
        if hello.length != offer.length:
            return self.refuse(connection, "length", f"{hello.length} tokens asked for, {offer.length} offered")
        return offer.admit(connection, hello)

    def _park(self, connection: Connection, hello: Hello, link: LinkName | None, until_ns: int) -> None:
        if self.parked >= self._limits.parked:
            return self.refuse(connection, "busy", "too many connections wait for their transfers")
        connection.give(self, PARKED)
        timer = self._alarm.at(until_ns, lambda: self._give_up(connection))
        parked = _Parked(connection, hello, link, timer)
        self._parked.setdefault(TransferId(hello.transfer), []).append(parked)
        return None

    def _give_up(self, connection: Connection) -> None:
        self._unpark(connection)
        self.refuse(connection, "unknown", "the transfer was not offered in time")
