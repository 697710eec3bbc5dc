"""The prefill side of one transfer: what waits, what was sent where, and when its memory may go.

It knows chunks (never their bytes), lanes, one receiver session and a lease. It does not know tickets, sockets or pace:
the driver admits a HELLO whose ticket is good, and asks with LaneFree when a lane can write.

What was sent on a lane that broke is in doubt until the receiver shows that lane again, with what it has; only what
it lacks leaves again. COMPLETE is said on every lane, once per welcome anywhere (`round`), when nothing waits and
nothing is in doubt.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from hmac import compare_digest

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import PeerFailure, ProtocolError, RemoteError
from prfaas.core.table import Table
from prfaas.core.transfer import effects as do
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.chunk import Chunk, clip, recut
from prfaas.core.transfer.extent import Arrived, Coverage
from prfaas.core.transfer.machine import Machine


class SenderState(Enum):
    """Where a sending transfer is."""

    OFFERED = "no receiver has shown a ticket yet; what the engine puts waits"
    STREAMING = "a receiver is bound; the engine may put more"
    FINISHED = "the engine has put everything; not all of it is known to have landed"
    LANDED = "the receiver owns the bytes; nothing is held here"
    CLOSED = "over, and well"
    FAILED = "over, and not well"


S = SenderState
OPEN = (S.OFFERED, S.STREAMING, S.FINISHED)
OVER = (S.CLOSED, S.FAILED)


@dataclass(slots=True)
class _Lane:
    sent: list[Chunk] = field(default_factory=list)
    round: int = 0
    """The round that COMPLETE was last said for."""


class Sender(Machine[ev.SenderEvent, do.SenderEffect]):
    """One transfer of `length` tokens to one receiver session. Every sign of life renews the lease."""

    table = Table("sender", SenderState, S.OFFERED, OVER)

    def __init__(self, layout: KVLayout, length: int, lease_ns: int) -> None:
        super().__init__()
        self.layout = layout
        self.length = length
        self.lease_ns = lease_ns
        self.session: str | None = None
        self.held = 0
        self.round = 0
        self.finished = False
        self.queue: deque[Chunk] = deque()
        self.lanes: dict[int, _Lane] = {}
        self.doubt: dict[int, list[Chunk]] = {}
        self.put_chunks = 0
        self.put_bytes = 0
        self._parts = {(part.layer, part.name): part for part in layout.parts}
        self._wanted = Coverage(layout, length)

    def next_batch(self, budget_bytes: int) -> tuple[int, int]:
        """Bytes and chunks that LaneFree with this budget would send now; (0, 0) when nothing waits.

        A first chunk that is larger is cut: the pace may have been another one when it was put.
        """
        if self.queue and self.queue[0].size > budget_bytes:
            chunk = self.queue.popleft()
            pieces = recut(chunk, self._parts[chunk.extent.layer, chunk.extent.part], budget_bytes)
            self.queue.extendleft(reversed(pieces))
            self.put_chunks += len(pieces) - 1
        size = count = 0
        for chunk in self.queue:
            if count and size + chunk.size > budget_bytes:
                break
            size, count = size + chunk.size, count + 1
        return size, count

    def wants(self, lane: int) -> bool:
        """Whether LaneFree for `lane` would do anything."""
        if self.state not in (S.STREAMING, S.FINISHED) or lane not in self.lanes:
            return False
        return bool(self.queue) or self._owes_complete(lane)

    def validate(self) -> None:
        holding = bool(self.queue or self.doubt or any(lane.sent for lane in self.lanes.values()))
        if self.state in (S.LANDED, *OVER) and holding:
            raise self.bug("chunks are kept after the end")
        if self.state is S.OFFERED and (self.session is not None or self.lanes):
            raise self.bug("a receiver is bound while merely offered")
        if self.state is S.STREAMING and self.finished:
            raise self.bug("streaming although finished")
        if set(self.lanes) & set(self.doubt):
            raise self.bug("a lane is open and in doubt")
        if any(lane.round > self.round for lane in self.lanes.values()):
            raise self.bug("a lane completed a round that has not begun")

    @table.on([S.OFFERED], ev.Start, [S.OFFERED], "the lease runs from the offer")
    def _start(self, now_ns: int, event: ev.Start) -> list[do.SenderEffect]:
        return [self._lease(now_ns)]

    @table.on([S.OFFERED], ev.Put, [S.OFFERED], "waits for a receiver")
    @table.on([S.STREAMING], ev.Put, [S.STREAMING], "leaves when a lane can write, less what the receiver holds")
    def _put(self, now_ns: int, event: ev.Put) -> list[do.SenderEffect]:
        for chunk in event.chunks:
            wanted = self._clipped(chunk)
            if wanted is not None:
                self.queue.append(wanted)
                self.put_chunks += 1
                self.put_bytes += wanted.size
        return [do.Wake()] if self.lanes else []

    @table.on([S.OFFERED], ev.Finish, [S.OFFERED], "remembered until a receiver comes")
    @table.on([S.STREAMING], ev.Finish, [S.FINISHED], "what waits still leaves, then COMPLETE")
    def _finish(self, now_ns: int, event: ev.Finish) -> list[do.SenderEffect]:
        self.finished = True
        if self.state is S.STREAMING:
            self.state = S.FINISHED
        return [do.Wake()] if self.lanes else []

    @table.on([S.OFFERED], ev.Hello, [*OPEN, S.LANDED], "the first valid HELLO binds the session")
    @table.on([S.STREAMING], ev.Hello, [S.STREAMING, S.LANDED], "another lane, or a resume; another session is refused")
    @table.on([S.FINISHED], ev.Hello, [S.FINISHED, S.LANDED], "another lane, or a resume; another session is refused")
    def _hello(self, now_ns: int, event: ev.Hello) -> list[do.SenderEffect]:
        refusal = self._refusal(event)
        if refusal is not None:
            return [refusal]
        if self.session is None:
            self.session, self.held = event.session, event.held
            self._wanted = Coverage(self.layout, self.length, self.held)
            self.state = S.FINISHED if self.finished else S.STREAMING
            waiting, self.queue = self.queue, deque()
            self.put_chunks = self.put_bytes = 0
            self._put(now_ns, ev.Put(tuple(waiting)))
        self._lose(event.lane)
        again = self._lacking(self.doubt.pop(event.lane, []), event)
        self.queue.extendleft(reversed(again))
        self.lanes[event.lane] = _Lane()
        self.round += 1
        effects: list[do.SenderEffect] = [do.SendWelcome(event.lane, self.round, self.lease_ns), self._lease(now_ns)]
        if event.landed:
            return effects + self._land()
        return effects + ([do.Requeued(len(again))] if again else []) + [do.Wake()]

    @table.on([S.LANDED], ev.Hello, [S.LANDED], "the receiver was not sure that LANDED came through")
    def _hello_again(self, now_ns: int, event: ev.Hello) -> list[do.SenderEffect]:
        refusal = self._refusal(event)
        if refusal is not None:
            return [refusal]
        self.lanes[event.lane] = _Lane()
        self.round += 1
        return [do.SendWelcome(event.lane, self.round, self.lease_ns), self._lease(now_ns)]

    @table.on([S.CLOSED], ev.Hello, [S.CLOSED], "too late")
    @table.on([S.FAILED], ev.Hello, [S.FAILED], "too late")
    def _hello_late(self, now_ns: int, event: ev.Hello) -> list[do.SenderEffect]:
        return [do.SendRefuse("ended", "the transfer is over")]

    @table.on([S.STREAMING], ev.LaneFree, [S.STREAMING], "the next chunks go to whichever lane can write")
    @table.on([S.FINISHED], ev.LaneFree, [S.FINISHED], "the next chunks; when none wait or are in doubt, COMPLETE")
    def _free(self, now_ns: int, event: ev.LaneFree) -> list[do.SenderEffect]:
        lane = self.lanes.get(event.lane)
        if lane is None:
            return []
        chunks: list[Chunk] = []
        size = 0
        while self.queue and (not chunks or size + self.queue[0].size <= event.budget_bytes):
            chunks.append(self.queue.popleft())
            size += chunks[-1].size
        if chunks:
            lane.sent += chunks
            return [do.SendData(event.lane, tuple(chunks), bool(self.queue))]
        if self._owes_complete(event.lane):
            lane.round = self.round
            return [do.SendComplete(event.lane, self.round, self.put_chunks, self.put_bytes)]
        return []

    @table.on(
        [S.STREAMING], ev.LaneLost, [S.STREAMING], "what was sent on it is in doubt until the lane is shown again"
    )
    @table.on([S.FINISHED], ev.LaneLost, [S.FINISHED], "what was sent on it is in doubt until the lane is shown again")
    def _lost(self, now_ns: int, event: ev.LaneLost) -> list[do.SenderEffect]:
        self._lose(event.lane)
        return []

    @table.on([S.LANDED], ev.LaneLost, [S.LANDED, S.CLOSED], "nothing is held; with the last lane the transfer is over")
    def _lost_late(self, now_ns: int, event: ev.LaneLost) -> list[do.SenderEffect]:
        self.lanes.pop(event.lane, None)
        return [] if self.lanes else self._close()

    @table.on([S.STREAMING], ev.Heard, [S.STREAMING], "renews the lease")
    @table.on([S.FINISHED], ev.Heard, [S.FINISHED], "renews the lease")
    @table.on([S.LANDED], ev.Heard, [S.LANDED], "renews the lease")
    def _heard(self, now_ns: int, event: ev.Heard) -> list[do.SenderEffect]:
        return [self._lease(now_ns)]

    @table.on([S.STREAMING, S.FINISHED], ev.PeerLanded, [S.LANDED], "the receiver owns the bytes: free them here")
    def _landed(self, now_ns: int, event: ev.PeerLanded) -> list[do.SenderEffect]:
        return self._land()

    @table.on([S.LANDED], ev.PeerApplied, [S.CLOSED], "in the engine's cache: the transfer is over")
    def _applied(self, now_ns: int, event: ev.PeerApplied) -> list[do.SenderEffect]:
        self.lanes.pop(event.lane, None)
        return [do.Retire(event.lane), *self._close()]

    @table.on([S.CLOSED], ev.PeerApplied, [S.CLOSED], "the other lanes say it too")
    @table.on([S.FAILED], ev.PeerApplied, [S.FAILED], "crossed with our end")
    def _applied_late(self, now_ns: int, event: ev.PeerApplied) -> list[do.SenderEffect]:
        return [do.Retire(event.lane)] if self.lanes.pop(event.lane, None) is not None else []

    @table.on([S.STREAMING, S.FINISHED], ev.PeerApplied, [S.FAILED], "APPLIED without LANDED is misuse")
    def _applied_early(self, now_ns: int, event: ev.PeerApplied) -> list[do.SenderEffect]:
        return self._fail("order", "APPLIED came before LANDED", ProtocolError)

    @table.on(
        [S.STREAMING, S.FINISHED], ev.Misused, [S.FAILED], "a receiver that breaks the protocol ends its transfer"
    )
    def _misused(self, now_ns: int, event: ev.Misused) -> list[do.SenderEffect]:
        return self._fail(event.code, event.detail, ProtocolError)

    @table.on([S.STREAMING, S.FINISHED], ev.PeerCancelled, [S.FAILED], "the receiver gives up: free at once")
    def _cancelled(self, now_ns: int, event: ev.PeerCancelled) -> list[do.SenderEffect]:
        return self._fail(event.code, event.detail, PeerFailure)

    @table.on([S.LANDED], ev.Misused, [S.CLOSED], "nothing is held here: hang up")
    @table.on([S.LANDED], ev.PeerCancelled, [S.CLOSED], "the receiver dropped what it owns; nothing is held here")
    @table.on([S.LANDED], ev.LeaseDue, [S.CLOSED], "silent, but it owns the bytes")
    def _end_quietly(self, now_ns: int, event: ev.Misused | ev.PeerCancelled | ev.LeaseDue) -> list[do.SenderEffect]:
        effects = self._close()
        effects[:0] = [do.HangUp(lane) for lane in self.lanes]
        self.lanes.clear()
        return effects

    @table.on([S.CLOSED], ev.Misused, [S.CLOSED], "hang up that lane")
    @table.on([S.CLOSED], ev.PeerCancelled, [S.CLOSED], "hang up that lane")
    def _hang_up(self, now_ns: int, event: ev.Misused | ev.PeerCancelled) -> list[do.SenderEffect]:
        return [do.HangUp(event.lane)] if self.lanes.pop(event.lane, None) is not None else []

    @table.on(OPEN, ev.Abort, [S.FAILED], "our side gives up: tell the receiver, free at once")
    def _abort(self, now_ns: int, event: ev.Abort) -> list[do.SenderEffect]:
        return self._fail(event.code, event.detail, RemoteError)

    @table.on(OPEN, ev.LeaseDue, [S.FAILED], "no sign of life for a whole lease: free everything")
    def _lease_due(self, now_ns: int, event: ev.LeaseDue) -> list[do.SenderEffect]:
        what = "no receiver came" if self.session is None else "the receiver fell silent"
        return self._fail("lease", f"{what} within {self.lease_ns // 1_000_000} ms", PeerFailure)

    Machine.ignore(table, (S.STREAMING, S.FINISHED, S.LANDED, *OVER), (ev.Start,), "already started")
    Machine.ignore(table, (S.FINISHED,), (ev.Put,), "after the end: the engine was told to stop, or puts twice")
    Machine.ignore(table, (S.LANDED, *OVER), (ev.Put, ev.Finish, ev.LaneFree, ev.Abort, ev.PeerLanded), "late")
    Machine.ignore(table, (S.FINISHED,), (ev.Finish,), "said twice")
    Machine.ignore(table, OVER, (ev.Heard, ev.LeaseDue), "late")
    Machine.ignore(
        table, (S.OFFERED,), (ev.LaneFree, ev.LaneLost, ev.Heard, ev.PeerLanded, ev.PeerApplied, ev.Misused,
                              ev.PeerCancelled), "no lane is bound yet",
    )  # fmt: skip
    Machine.ignore(table, (S.FAILED,), (ev.Misused, ev.PeerCancelled), "all lanes are hung up already")

    @table.on([S.CLOSED], ev.LaneLost, [S.CLOSED], "nothing is held")
    @table.on([S.FAILED], ev.LaneLost, [S.FAILED], "nothing is held")
    def _forget(self, now_ns: int, event: ev.LaneLost) -> list[do.SenderEffect]:
        self.lanes.pop(event.lane, None)
        return []

    def _lease(self, now_ns: int) -> do.SenderEffect:
        return do.ArmTimer(now_ns + self.lease_ns, ev.LeaseDue())

    def _refusal(self, event: ev.Hello) -> do.SendRefuse | None:
        if self.session is not None and not compare_digest(self.session.encode(), event.session.encode()):
            return do.SendRefuse("session", "the ticket is in use by another receiver session")
        if self.session is not None and event.held != self.held:
            return do.SendRefuse("session", f"held {self.held} tokens before, {event.held} now")
        if not 0 <= event.held <= self.length:
            return do.SendRefuse("length", f"held {event.held} of {self.length} tokens")
        return None

    def _clipped(self, chunk: Chunk) -> Chunk | None:
        part = self._parts[chunk.extent.layer, chunk.extent.part]
        wanted = clip(chunk, part, self._wanted.first_row(part))
        return wanted if wanted is not None and self._wanted.fits(wanted.extent) else None

    def _lacking(self, doubt: list[Chunk], event: ev.Hello) -> list[Chunk]:
        have = Coverage(self.layout, self.length, self.held)
        for extent in event.have:
            if have.fits(extent):
                have.add(extent)
        return [chunk for chunk in doubt if have.arrived(chunk.extent) is not Arrived.ALL]

    def _lose(self, lane: int) -> None:
        lost = self.lanes.pop(lane, None)
        if lost is not None:
            self.doubt[lane] = lost.sent

    def _owes_complete(self, lane: int) -> bool:
        return self.finished and not self.queue and not self.doubt and self.lanes[lane].round < self.round

    def _drop(self) -> None:
        self.queue.clear()
        self.doubt.clear()
        for lane in self.lanes.values():
            lane.sent.clear()

    def _land(self) -> list[do.SenderEffect]:
        self._drop()
        self.state = S.LANDED
        return [do.Release("applied", "", None)]

    def _close(self) -> list[do.SenderEffect]:
        self.state = S.CLOSED
        return [do.DisarmTimer(ev.LeaseDue()), do.Ended("applied", "", None)]

    def _fail(self, code: str, detail: str, error: type[RemoteError]) -> list[do.SenderEffect]:
        self._drop()
        self.state = S.FAILED
        effects: list[do.SenderEffect] = []
        for lane in self.lanes:
            effects += [do.SendCancel(lane, code, detail), do.HangUp(lane)]
        self.lanes.clear()
        ending = (do.DisarmTimer(ev.LeaseDue()), do.Release(code, detail, error), do.Ended(code, detail, error))
        return [*effects, *ending]
