"""Drives the prefill side's machine over connections: what the engine puts goes out as DATA frames.

It knows frames, connections and the machine's effects. It does not decide: what leaves again, when memory may go, and
when to give up is the machine's. Only `put` is called from another thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, assert_never

from prfaas.core.agenda import Entry
from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import LocalError, ProtocolError
from prfaas.core.ids import LinkName, TransferId
from prfaas.core.transfer import effects as do
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.chunk import Chunk, split
from prfaas.core.transfer.extent import Extent, extent_bytes
from prfaas.core.transfer.sender import Sender
from prfaas.transport.base import Outcome
from prfaas.transport.stream.alarm import Call
from prfaas.transport.stream.connection import Buffer, Connection
from prfaas.transport.stream.merge import Run, merged
from prfaas.transport.stream.pacer import OVERHEAD_BYTES
from prfaas.wire import messages as m
from prfaas.wire.frame import Data, encode_data
from prfaas.wire.layout import fingerprint

if TYPE_CHECKING:
    from prfaas.transport.stream.transport import StreamTransport

FETCHING = frozenset({m.Kind.LANDED, m.Kind.APPLIED, m.Kind.CANCEL, m.Kind.PING})


class _Lane:
    """One connection of the transfer; what waits for its turn on a paced link."""

    __slots__ = ("connection", "number", "sending")

    def __init__(self, sending: StreamSending, number: int, connection: Connection) -> None:
        self.sending, self.number, self.connection = sending, number, connection

    def pump(self) -> None:
        self.sending.pump(self)


class StreamSending:
    """See `transport.base.Sending`."""

    def __init__(
        self,
        hub: StreamTransport,
        transfer: TransferId,
        layout: KVLayout,
        length: int,
        link: LinkName,
        lease_ns: int,
        cached: int = 0,
    ) -> None:
        self.transfer, self.layout, self.length, self.link = transfer, layout, length, link
        self.fingerprint = fingerprint(layout)
        self.machine = Sender(layout, length, lease_ns)
        self._hub, self._cached = hub, cached
        self._loop = asyncio.get_running_loop()
        self._parts = {(part.layer, part.name): part for part in layout.parts}
        self._inbox: deque[tuple[Extent, memoryview]] = deque()
        self._scheduled = False
        self._data: dict[int, Run] = {}
        self._keys = 0
        self._lanes: dict[int, _Lane] = {}
        self._lane_of: dict[Connection, int] = {}
        self._candidate: Connection | None = None
        self._timer: Entry[Call] | None = None
        self._sweeper: Entry[Call] | None = None
        self._pumping = self._woken = False
        self._moved, self._first_ns, self._last_ns = 0, 0, 0
        self._report: m.Landed | None = None
        self._outcome: Outcome | None = None
        self._done = asyncio.Event()
        self.handle(ev.Start())

    # Called by the engine and the node.

    def put(self, extent: Extent, data: memoryview) -> None:
        """See `Sending.put`. Raises LocalError when `data` is not what `extent` says."""
        part = self._parts.get((extent.layer, extent.part))
        if part is None or not 0 <= extent.heads[0] < extent.heads[1] <= part.shape[0]:
            raise LocalError(f"{extent} is not of the layout {self.layout.revision}")
        if not 0 <= extent.start < extent.stop <= self.length:
            raise LocalError(f"{extent} is not within the {self.length} tokens of {self.transfer}")
        if data.nbytes != extent_bytes(part, extent) or not data.c_contiguous:
            raise LocalError(
                f"{extent}: {data.nbytes} bytes, of {extent_bytes(part, extent)} that must be in one piece"
            )
        self._inbox.append((extent, data.cast("B")))
        if not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._take_in)
            except RuntimeError:
                return  # The loop is closed, and everything with it.

    def finish(self) -> None:
        """See `Sending.finish`."""
        self._take_in()
        self.handle(ev.Finish())

    def abort(self, code: str, detail: str) -> None:
        """See `Sending.abort`."""
        self.handle(ev.Abort(code, detail))

    async def released(self) -> Outcome:
        """See `Sending.released`."""
        await self._done.wait()
        assert self._outcome is not None
        return self._outcome

    # Called by the greeter and the connections.

    def admit(self, connection: Connection, hello: m.Hello) -> None:
        """See `greeter.Offered`."""
        connection.delay_ns = self._hub.delay_ns(self.link)
        self._candidate = connection
        have = tuple(body.extent() for body in hello.have)
        self.handle(ev.Hello(hello.connection, hello.session, hello.held, have, hello.landed))
        self._candidate = None

    def on_read(self, connection: Connection, size: int, under_way: bool) -> None:
        """Any byte is a sign of life."""
        self.handle(ev.Heard())

    def place(self, connection: Connection, head: m.DataHead, size: int) -> memoryview | None:
        """No payload comes here."""
        return None

    def on_frame(self, connection: Connection, frame: m.Message | Data) -> None:
        """What the receiver says."""
        lane = self._lane_of[connection]
        match frame:
            case m.Ping():
                connection.send(m.Pong())
            case m.Landed():
                self._report = frame
                self.handle(ev.PeerLanded(lane))
            case m.Applied():
                self.handle(ev.PeerApplied(lane))
            case m.Cancel():
                self.handle(ev.PeerCancelled(lane, frame.code, frame.detail))
            case _:
                self.on_misuse(connection, ProtocolError("order", f"{type(frame).__name__} may not come now"))

    def on_misuse(self, connection: Connection, error: ProtocolError) -> None:
        """What the receiver says is not allowed."""
        self.handle(ev.Misused(self._lane_of[connection], error.code, error.detail))

    def on_writable(self, connection: Connection) -> None:
        """More may leave on it."""
        self.pump(self._lanes[self._lane_of[connection]])

    def on_lost(self, connection: Connection, detail: str) -> None:
        """The connection broke."""
        lane = self._lane_of[connection]
        self._leave(lane)
        self.handle(ev.LaneLost(lane, detail))

    def pump(self, lane: _Lane) -> None:
        """Send on `lane` what waits, as far as the connection and the link's pace allow."""
        if self._lanes.get(lane.number) is not lane:
            return
        machine, pacer = self.machine, self._hub.pacer
        while lane.connection.writable and machine.wants(lane.number):
            budget = pacer.chunk_bytes(self.link)
            size, chunks = machine.next_batch(budget)
            if chunks and not pacer.allow(self.link, size + chunks * OVERHEAD_BYTES, lane):
                return
            self.handle(ev.LaneFree(lane.number, budget))

    def handle(self, event: ev.SenderEvent) -> None:
        """Let the machine decide, then do what it says."""
        for effect in self.machine.handle(self._hub.alarm.clock(), event):
            self._do(effect)
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._woken:
                self._woken = False
                for lane in list(self._lanes.values()):
                    self.pump(lane)
        finally:
            self._pumping = False

    def _take_in(self) -> None:
        self._scheduled = False
        limit = self._hub.pacer.chunk_bytes(self.link)
        pieces: list[tuple[Extent, memoryview]] = []
        while self._inbox:
            pieces.append(self._inbox.popleft())
        if self._done.is_set():
            return
        chunks: list[Chunk] = []
        # What a later extent supersedes is not worth sending.
        for run in merged((piece for piece in pieces if piece[0].final), limit):
            extent = run.extent
            chunks += split(self._parts[extent.layer, extent.part], extent, self._keys, limit)
            self._data[self._keys] = run
            self._keys += 1
        if chunks:
            self.handle(ev.Put(tuple(chunks)))

    def _do(self, effect: do.SenderEffect) -> None:
        match effect:
            case do.ArmTimer(at_ns, fires):
                self._hub.alarm.cancel(self._timer)
                self._timer = self._hub.alarm.at(at_ns, lambda: self.handle(ev.LeaseDue()))
                assert isinstance(fires, ev.LeaseDue)
            case do.DisarmTimer():
                self._hub.alarm.cancel(self._timer)
            case do.SendWelcome(lane, round_, lease_ns):
                self._welcome(lane, round_, lease_ns)
            case do.SendRefuse(code, detail):
                assert self._candidate is not None
                self._hub.greeter.refuse(self._candidate, code, detail)
            case do.SendData(lane, chunks, more):
                self._send(self._lanes[lane].connection, chunks, more)
            case do.SendComplete(lane, round_, chunks_put, bytes_put):
                self._lanes[lane].connection.send(m.Complete(round_, chunks_put, bytes_put))
            case do.SendCancel(lane, code, detail):
                self._lanes[lane].connection.send(m.Cancel(m.clipped(code, 64), m.clipped(detail)))
            case do.HangUp(lane):
                self._leave(lane).hang_up()
            case do.Retire(lane):
                self._hub.greeter.back(self._leave(lane))
            case do.Requeued(chunks_again):
                self._hub.stats.requeued(self.link, chunks_again)
            case do.Wake():
                self._woken = True
            case do.Release(cause, detail):
                self._release(cause, detail)
            case do.Ended(cause, detail):
                self._hub.sending_over(self, cause, detail)
                # Lanes that never say APPLIED are not kept for ever.
                if self._lanes:
                    self._sweeper = self._hub.alarm.at(self._hub.alarm.clock() + self._hub.limits.idle_ns, self._sweep)
            case _:
                assert_never(effect)

    def _welcome(self, lane: int, round_: int, lease_ns: int) -> None:
        assert self._candidate is not None
        if lane in self._lanes:
            self._leave(lane).hang_up()
        self._lanes[lane] = _Lane(self, lane, self._candidate)
        self._lane_of[self._candidate] = lane
        self._candidate.give(self, FETCHING)
        session = self.machine.session or ""
        lease_ms = max(1, lease_ns // 1_000_000)
        self._candidate.send(m.Welcome(m.VERSION, self._hub.epoch, session, round_, lease_ms, self._cached))

    def _send(self, connection: Connection, chunks: tuple[Chunk, ...], more: bool) -> None:
        frames: list[Buffer] = []
        for chunk in chunks:
            payload = self._data[chunk.key].cut(chunk.offset, chunk.size)
            part = self._parts[chunk.extent.layer, chunk.extent.part]
            head = m.data_head(part, chunk.extent, more or chunk is not chunks[-1])
            frames += (encode_data(head, *payload), *payload)
        size = sum(chunk.size for chunk in chunks)
        now_ns = self._hub.alarm.clock()
        self._first_ns, self._last_ns = self._first_ns or now_ns, now_ns
        self._moved += size
        self._hub.stats.sent(self.link, size)
        connection.write(frames)

    def _leave(self, lane: int) -> Connection:
        connection = self._lanes.pop(lane).connection
        del self._lane_of[connection]
        if not self._lanes:
            self._hub.alarm.cancel(self._sweeper)
        return connection

    def _release(self, cause: str, detail: str) -> None:
        self._data.clear()
        self._inbox.clear()
        moved, moving_ns = self._moved, self._last_ns - self._first_ns
        if self._report is not None:
            moved, moving_ns = self._report.bytes_moved, self._report.moving_ns
        self._outcome = Outcome(cause, detail, moved, moving_ns)
        self._done.set()
        self._hub.sending_released(self, self._outcome)

    def _sweep(self) -> None:
        for lane in list(self._lanes):
            self._leave(lane).hang_up()
