"""Drives the decode side's machine over connections: dials, takes DATA frames in, and says what it has.

It knows frames, connections and the machine's effects. It does not decide: whether to dial again, to ask again or to
give up is the machine's.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from prfaas.core.agenda import Entry
from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import InvariantError, ProtocolError, RemoteError
from prfaas.core.ids import LinkName, SessionId, TransferId
from prfaas.core.transfer import effects as do
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.extent import Extent
from prfaas.core.transfer.meter import Meter
from prfaas.core.transfer.receiver import Receiver
from prfaas.transport.base import LandedKV, Outcome, Peer
from prfaas.transport.landing import Landing
from prfaas.transport.stream.alarm import Call
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.pool import LEFT_OVER
from prfaas.wire import messages as m
from prfaas.wire.frame import Data
from prfaas.wire.layout import describe_difference, fingerprint, layout_of

if TYPE_CHECKING:
    from prfaas.transport.stream.transport import StreamTransport

GREETED = LEFT_OVER | {m.Kind.WELCOME, m.Kind.REFUSE}
_HAVE_BYTES = 128 * m.KIB
"""What `have` may take of a HELLO; extents beyond are left out, and merely come twice."""


class _Lane:
    """One connection of the transfer, in the making or open."""

    __slots__ = ("connection", "dial", "heard", "hello", "number", "reused", "welcomed")

    def __init__(self, number: int, hello: m.Hello) -> None:
        self.number, self.hello = number, hello
        self.connection: Connection | None = None
        self.dial: asyncio.Task[None] | None = None
        self.reused = self.heard = self.welcomed = False


class StreamReceiving:
    """See `transport.base.Receiving`."""

    def __init__(
        self,
        hub: StreamTransport,
        transfer: TransferId,
        layout: KVLayout,
        length: int,
        remote: Sequence[Peer],
        ticket: str,
        held: int,
        connections: int,
        link: LinkName,
        deadline_ns: int,
    ) -> None:
        self.transfer, self.layout, self.link = transfer, layout, link
        self.session = SessionId(secrets.token_hex(16))
        self.machine = Receiver(
            layout,
            length,
            held,
            peers=len(remote),
            connections=connections,
            deadline_ns=deadline_ns,
            patience=hub.limits.patience,
        )
        self._hub = hub
        self._remote = tuple(remote)
        self._ticket = ticket
        self._fingerprint = fingerprint(layout)
        self._landing = Landing(self.machine.coverage)
        self._lanes: dict[int, _Lane] = {}
        self._lane_of: dict[Connection, _Lane] = {}
        self._timers: dict[ev.Timer, Entry[Call]] = {}
        self._heard_ns = [0] * len(remote)
        self._meter: Meter | None = None
        self._moved = [0] * len(remote)
        self._kv: LandedKV | None = None
        self._cached = 0
        self._outcome: Outcome | None = None
        self._error: RemoteError | None = None
        self._landed = asyncio.Event()
        self._ended = asyncio.Event()
        self.handle(ev.Start())

    # Called by the node.

    async def landed(self) -> LandedKV:
        """See `Receiving.landed`."""
        await self._landed.wait()
        if self._error is not None:
            raise self._error
        if self._kv is None:
            raise InvariantError("what landed was handed over to the engine already")
        return self._kv

    def applied(self) -> None:
        """See `Receiving.applied`. Raises InvariantError when it has not landed."""
        self.handle(ev.Applied())

    def cancel(self, code: str, detail: str) -> None:
        """See `Receiving.cancel`."""
        self.handle(ev.Cancel(code, detail))

    async def ended(self) -> Outcome:
        """See `Receiving.ended`."""
        await self._ended.wait()
        assert self._outcome is not None
        return self._outcome

    # Called by the connections.

    def on_read(self, connection: Connection, size: int, under_way: bool) -> None:
        """Bytes are signs of life, and what the meter counts."""
        lane = self._lane_of[connection]
        lane.heard = True
        now_ns = self._hub.alarm.clock()
        if self._meter is not None and not self._landed.is_set():
            self._meter.read(now_ns, size, under_way)
        peer = lane.number // self.machine.connections
        if now_ns - self._heard_ns[peer] > self.machine.lease_ns // 16:
            self._heard_ns[peer] = now_ns
            self.handle(ev.Heard(peer))

    def place(self, connection: Connection, head: m.DataHead, size: int) -> memoryview | None:
        """Straight to where it belongs, if that is possible."""
        lane = self._lane_of[connection]
        return self._landing.place(lane.number, head, size, connection.decoder) if lane.welcomed else None

    def on_frame(self, connection: Connection, frame: m.Message | Data) -> None:
        """What a sender says. Before WELCOME or REFUSE everything is left over from the connection's last transfer."""
        lane = self._lane_of[connection]
        if not lane.welcomed:
            if isinstance(frame, m.Welcome):
                self._welcomed(lane, frame)
            elif isinstance(frame, m.Refuse):
                detail = frame.detail if frame.layout is None else self._difference(frame.layout)
                self._leave(lane.number).hang_up()
                self.handle(ev.Refused(lane.number, frame.code, detail))
            return
        match frame:
            case Data():
                self._data(lane, frame)
            case m.Complete():
                self.handle(ev.Completed(lane.number, frame.round))
            case m.Cancel():
                self.handle(ev.PeerCancelled(lane.number, frame.code, frame.detail))
            case m.Pong():
                pass
            case _:
                self.on_misuse(connection, ProtocolError("order", f"{type(frame).__name__} may not come now"))

    def on_misuse(self, connection: Connection, error: ProtocolError) -> None:
        """What the sender says is not allowed."""
        self.handle(ev.Misused(self._lane_of[connection].number, error.code, error.detail))

    def on_writable(self, connection: Connection) -> None:
        """What we say is short: nothing waits."""

    def on_lost(self, connection: Connection, detail: str) -> None:
        """The connection broke. One that idled too long is replaced without counting as a try."""
        lane = self._lane_of.pop(connection)
        self._landing.drop(lane.number)
        if lane.reused and not lane.heard:
            lane.connection, lane.reused = None, False
            lane.dial = self._hub.spawn(self._connect(lane))
            return
        del self._lanes[lane.number]
        self.handle(ev.LaneLost(lane.number, detail))

    def handle(self, event: ev.ReceiverEvent) -> None:
        """Let the machine decide, then do what it says."""
        if isinstance(event, ev.DeadlineDue | ev.LifeDue | ev.RetryDue):
            self._timers.pop(event, None)
        for effect in self.machine.handle(self._hub.alarm.clock(), event):
            self._do(effect)

    def _do(self, effect: do.ReceiverEffect) -> None:
        match effect:
            case do.ArmTimer(at_ns, fires):
                self._disarm(fires)
                self._timers[fires] = self._hub.alarm.at(at_ns, lambda: self._due(fires))
            case do.DisarmTimer(fires):
                self._disarm(fires)
            case do.Dial(lane, have, landed):
                self._dial(lane, have, landed)
            case do.HangUp(lane):
                self._hang_up(lane)
            case do.Retire(lane):
                self._hub.pool.put(self._peer(lane), self._leave(lane))
            case do.SendPing(lane):
                self._say(lane, m.Ping())
            case do.SendLanded(lane):
                self._say(lane, m.Landed(self._moved[lane // self.machine.connections], self._moving_ns))
            case do.SendApplied(lane):
                self._say(lane, m.Applied())
            case do.SendCancel(lane, code, detail):
                self._say(lane, m.Cancel(m.clipped(code, 64), m.clipped(detail)))
            case do.HandOver():
                self._kv = self._landing.hand_over()
                self._kv.cached = min(self._cached, self._kv.length)
                self._landed.set()
            case do.Ended(cause, detail, error):
                self._end(cause, detail, error)
            case _:
                assert_never(effect)

    def _due(self, timer: ev.Timer) -> None:
        assert not isinstance(timer, ev.LeaseDue)
        self.handle(timer)

    def _disarm(self, timer: ev.Timer) -> None:
        self._hub.alarm.cancel(self._timers.pop(timer, None))

    @property
    def _moving_ns(self) -> int:
        return self._meter.moving_ns if self._meter is not None else 0

    def _peer(self, lane: int) -> Peer:
        return self._remote[lane // self.machine.connections]

    def _say(self, lane: int, message: m.Message) -> None:
        found = self._lanes.get(lane)
        # A lane that is still being dialled has nobody to say it to.
        if found is not None and found.connection is not None:
            found.connection.send(message)

    def _dial(self, number: int, have: tuple[Extent, ...], landed: bool) -> None:
        bodies, size = [], 0
        for extent in have[: m.MAX_HAVE]:
            size += len(extent.part) + 48
            if size > _HAVE_BYTES:
                break
            bodies.append(m.extent_body(extent))
        coverage, connections = self.machine.coverage, self.machine.connections
        hello = m.Hello(
            version=m.VERSION,
            ticket=self._ticket,
            transfer=self.transfer,
            session=self.session,
            receiver=self._hub.node,
            connection=number % connections,
            connections=connections,
            layout=self._fingerprint,
            length=coverage.length,
            held=coverage.held,
            have=bodies,
            landed=landed,
        )
        lane = self._lanes[number] = _Lane(number, hello)
        idle = self._hub.pool.take(self._peer(number))
        if idle is not None:
            lane.reused = True
            self._greet(lane, idle)
        else:
            lane.dial = self._hub.spawn(self._connect(lane))

    async def _connect(self, lane: _Lane) -> None:
        try:
            connection = await self._hub.connect(self._peer(lane.number))
        except OSError as error:
            self._lanes.pop(lane.number, None)
            self.handle(ev.LaneLost(lane.number, f"cannot connect: {error}"))
            return
        lane.dial = None
        self._greet(lane, connection)

    def _greet(self, lane: _Lane, connection: Connection) -> None:
        if not connection.alive:
            del self._lanes[lane.number]
            self.handle(ev.LaneLost(lane.number, "the peer closed the connection"))
            return
        lane.connection = connection
        self._lane_of[connection] = lane
        connection.give(self, GREETED)
        connection.delay_ns = self._hub.delay_ns(self.link)
        connection.send(lane.hello)
        if self._meter is None:
            self._meter = Meter(self._hub.alarm.clock())

    def _welcomed(self, lane: _Lane, welcome: m.Welcome) -> None:
        if welcome.version != m.VERSION or welcome.session != self.session:
            error = ProtocolError("order", f"WELCOME for version {welcome.version}, session {welcome.session!r}")
            self.handle(ev.Misused(lane.number, error.code, error.detail))
            return
        lane.welcomed = True
        self._cached = max(self._cached, welcome.cached)
        assert lane.connection is not None
        lane.connection.give(self, LEFT_OVER)
        lease_ns = welcome.lease_ms * 1_000_000
        self.handle(ev.Opened(lane.number, welcome.epoch, lease_ns, welcome.round))

    def _data(self, lane: _Lane, data: Data) -> None:
        self._moved[lane.number // self.machine.connections] += data.size
        if self._meter is not None and data.head is not None:
            self._meter.chunk(data.head.more)
        self._hub.stats.received(self.link, data.size)
        if not data.intact:
            self._landing.drop(lane.number)
            self._hub.stats.corrupt(self.link)
            self.handle(ev.Corrupt(lane.number))
            return
        try:
            extent = self._landing.settle(lane.number, data)
        except ProtocolError as error:
            self.handle(ev.Misused(lane.number, error.code, error.detail))
            return
        if extent is not None:
            self.handle(ev.Arrived(lane.number, extent))

    def _difference(self, body: m.LayoutBody) -> str:
        try:
            return describe_difference(self.layout, layout_of(body))
        except ProtocolError as error:
            return error.detail

    def _leave(self, number: int) -> Connection:
        lane = self._lanes.pop(number)
        self._landing.drop(number)
        assert lane.connection is not None
        del self._lane_of[lane.connection]
        return lane.connection

    def _hang_up(self, number: int) -> None:
        lane = self._lanes.get(number)
        if lane is None:
            return
        if lane.connection is not None:
            self._leave(number).hang_up()
            return
        del self._lanes[number]
        if lane.dial is not None:
            lane.dial.cancel()

    def _end(self, cause: str, detail: str, error: type[RemoteError] | None) -> None:
        self._landing.clear()
        self._kv = None
        self._outcome = Outcome(cause, detail, sum(self._moved), self._moving_ns)
        if error is not None:
            self._error = error(cause, detail)
        self._landed.set()
        self._ended.set()
        self._hub.receiving_over(self, self._outcome)
