"""The decode side of one transfer: which lanes are open, what has arrived, and what to do when some of it does not.

It knows extents, lanes and patience. It does not know tickets, sockets or buffers: the driver verifies and places a
chunk before it says Arrived.

A lane that breaks is dialled again, showing what is here; tries are bounded and start over when something new arrives.
A corrupt chunk breaks its lane, so that the same resume asks for it again, a bounded number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import PeerFailure, ProtocolError, RemoteError
from prfaas.core.table import Table
from prfaas.core.transfer import effects as do
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.extent import Coverage
from prfaas.core.transfer.machine import Machine

SECOND = 1_000_000_000


class ReceiverState(Enum):
    """Where a receiving transfer is."""

    DIALLING = "no lane is open: not yet, or not any more"
    RECEIVING = "at least one lane is open"
    LANDED = "everything is here and verified; the engine does not have it yet"
    APPLIED = "over: the engine has the KV"
    FAILED = "over, and not well"


S = ReceiverState
MOVING = (S.DIALLING, S.RECEIVING)
OVER = (S.APPLIED, S.FAILED)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a receiver bears with what. `lease_ns` holds until a WELCOME names the sender's own."""

    tries: int = 5
    backoff_ns: int = 50_000_000
    """Before the second try; doubles, up to one second."""
    corrupt: int = 1
    """Corrupt chunks that are asked for again before the transfer fails."""
    lease_ns: int = 15 * SECOND


class _Link(Enum):
    """What a lane is doing."""

    DIALLING = 1
    OPEN = 2
    WAITING = 3
    GONE = 4


@dataclass(slots=True)
class _Lane:
    link: _Link = _Link.DIALLING
    failures: int = 0
    complete: int = 0
    """The latest round that COMPLETE was said for on this lane; 0 when none since it opened."""


@dataclass(slots=True)
class _Peer:
    heard_ns: int = 0
    epoch: int | None = None
    round: int = 0
    told: bool = False
    """Whether LANDED was sent to it."""


class Receiver(Machine[ev.ReceiverEvent, do.ReceiverEffect]):
    """One transfer from `peers` senders (ranks), over `connections` lanes each."""

    table = Table("receiver", ReceiverState, S.DIALLING, OVER)

    def __init__(
        self,
        layout: KVLayout,
        length: int,
        held: int,
        *,
        peers: int,
        connections: int,
        deadline_ns: int,
        patience: Patience | None = None,
    ) -> None:
        super().__init__()
        self.coverage = Coverage(layout, length, held)
        self.connections = connections
        self.deadline_ns = deadline_ns
        self.patience = patience or Patience()
        self.lease_ns = self.patience.lease_ns
        self.lanes = [_Lane() for _ in range(peers * connections)]
        self.peers = [_Peer() for _ in range(peers)]
        self.corrupt = 0

    def validate(self) -> None:
        links = [lane.link for lane in self.lanes]
        if self.state is S.DIALLING and _Link.OPEN in links:
            raise self.bug("a lane is open while dialling")
        if self.state is S.RECEIVING and _Link.OPEN not in links:
            raise self.bug("receiving without a lane")
        if self.state in OVER and any(link is not _Link.GONE for link in links):
            raise self.bug("a lane outlived the transfer")
        if self.state in (S.LANDED, S.APPLIED) and not self.coverage.complete:
            raise self.bug("landed with bytes missing")
        if self.state is S.RECEIVING and self.coverage.complete:
            raise self.bug("complete but not landed")

    @table.on(
        [S.DIALLING], ev.Start, [S.DIALLING, S.LANDED], "dial every lane; nothing missing: landed, dial to say so"
    )
    def _start(self, now_ns: int, event: ev.Start) -> list[do.ReceiverEffect]:
        for peer in self.peers:
            peer.heard_ns = now_ns
        effects: list[do.ReceiverEffect] = [do.ArmTimer(self.deadline_ns, ev.DeadlineDue()), self._life(now_ns)]
        if self.coverage.complete:
            effects += self._land()
            for index, lane in enumerate(self.lanes):
                lane.link = _Link.DIALLING if index % self.connections == 0 else _Link.GONE
        return effects + [self._dial(i) for i, lane in enumerate(self.lanes) if lane.link is _Link.DIALLING]

    @table.on(MOVING, ev.Opened, [*MOVING, S.LANDED, S.FAILED], "nothing missing: landed; another epoch: failed")
    @table.on([S.LANDED], ev.Opened, [S.LANDED], "tell this peer that everything landed")
    def _opened(self, now_ns: int, event: ev.Opened) -> list[do.ReceiverEffect]:
        lane, peer = self.lanes[event.lane], self._peer(event.lane)
        if lane.link is not _Link.DIALLING:
            return []
        if peer.epoch is not None and peer.epoch != event.epoch and self.state is not S.LANDED:
            return self._fail("epoch", f"the sender restarted (epoch {peer.epoch}, now {event.epoch})", PeerFailure)
        lane.link, lane.complete = _Link.OPEN, 0
        peer.epoch, peer.heard_ns, peer.round = event.epoch, now_ns, max(peer.round, event.round)
        self.lease_ns = event.lease_ns
        effects: list[do.ReceiverEffect] = [self._life(now_ns)]
        if self.state is S.DIALLING:
            self.state = S.RECEIVING
        return effects + (self._land() if self.coverage.complete else [])

    @table.on(MOVING, ev.LaneLost, [*MOVING, S.FAILED], "dial again with what is here, a bounded number of times")
    @table.on([S.LANDED], ev.LaneLost, [S.LANDED], "the peer may not know that all landed: tell it again")
    def _lost(self, now_ns: int, event: ev.LaneLost) -> list[do.ReceiverEffect]:
        lane, peer = self.lanes[event.lane], self._peer(event.lane)
        if lane.link not in (_Link.OPEN, _Link.DIALLING):
            return []
        lane.link, lane.complete = _Link.WAITING, 0
        lane.failures += 1
        spent = lane.failures >= self.patience.tries
        if self.state is S.LANDED:
            # LANDED may have been lost with the lane: say it again, on another one or this one.
            peer.told = False
            others = [i for i in self._lanes_of(event.lane // self.connections) if self.lanes[i].link is _Link.OPEN]
            if others or spent:
                lane.link = _Link.GONE
                return self._land()
        elif spent:
            return self._fail("unreachable", f"{lane.failures} tries; last: {event.detail}", PeerFailure)
        else:
            self._settle()
        wait_ns = min(self.patience.backoff_ns << (lane.failures - 1), SECOND)
        return [do.ArmTimer(now_ns + wait_ns, ev.RetryDue(event.lane))]

    @table.on([*MOVING, S.LANDED], ev.RetryDue, [*MOVING, S.LANDED], "the backoff is over: dial")
    def _retry(self, now_ns: int, event: ev.RetryDue) -> list[do.ReceiverEffect]:
        if self.lanes[event.lane].link is not _Link.WAITING:
            return []
        return [self._dial(event.lane)]

    @table.on(MOVING, ev.Refused, [*MOVING, S.FAILED], "final, unless the listener is merely busy")
    def _refused(self, now_ns: int, event: ev.Refused) -> list[do.ReceiverEffect]:
        if event.code == "busy":
            return self._lost(now_ns, ev.LaneLost(event.lane, f"busy: {event.detail}"))
        return self._fail(event.code, event.detail, RemoteError)

    @table.on([S.LANDED], ev.Refused, [S.LANDED], "the sender is gone; its bytes are here")
    def _refused_late(self, now_ns: int, event: ev.Refused) -> list[do.ReceiverEffect]:
        self.lanes[event.lane].link = _Link.GONE
        return [do.HangUp(event.lane)]

    @table.on([S.RECEIVING], ev.Arrived, [S.RECEIVING, S.LANDED], "booked; a duplicate changes nothing")
    @table.on([S.DIALLING], ev.Arrived, [S.DIALLING, S.LANDED], "verified before its connection broke: it counts")
    def _arrived(self, now_ns: int, event: ev.Arrived) -> list[do.ReceiverEffect]:
        lane = self.lanes[event.lane]
        lane.complete = 0
        if self.coverage.add(event.extent):
            lane.failures = 0
        return self._land() if self.coverage.complete else []

    @table.on(MOVING, ev.Corrupt, [*MOVING, S.FAILED], "break the lane: the resume asks again; too many: failed")
    def _corrupted(self, now_ns: int, event: ev.Corrupt) -> list[do.ReceiverEffect]:
        self.corrupt += 1
        if self.corrupt > self.patience.corrupt:
            return self._fail("corrupt", f"{self.corrupt} chunks with a wrong checksum", PeerFailure)
        return [do.HangUp(event.lane), *self._lost(now_ns, ev.LaneLost(event.lane, "corrupt"))]

    @table.on(MOVING, ev.Completed, [*MOVING, S.FAILED], "said on every lane, and bytes still missing: failed")
    def _completed(self, now_ns: int, event: ev.Completed) -> list[do.ReceiverEffect]:
        lane, peer = self.lanes[event.lane], self._peer(event.lane)
        lane.complete, peer.round = event.round, max(peer.round, event.round)
        for index, other in enumerate(self.lanes):
            if other.link is not _Link.OPEN or other.complete < self._peer(index).round:
                return []
        missing = self.coverage.missing_bytes
        return self._fail("incomplete", f"the sender is done and {missing} bytes are missing", ProtocolError)

    @table.on([*MOVING, S.LANDED], ev.Heard, [*MOVING, S.LANDED], "that peer lives")
    def _heard(self, now_ns: int, event: ev.Heard) -> list[do.ReceiverEffect]:
        self.peers[event.peer].heard_ns = now_ns
        return []

    @table.on(MOVING, ev.LifeDue, [*MOVING, S.FAILED], "PING each peer; lanes of a silent one count as lost")
    @table.on([S.LANDED], ev.LifeDue, [S.LANDED], "PING each peer; lanes of a silent one count as lost")
    def _life_due(self, now_ns: int, event: ev.LifeDue) -> list[do.ReceiverEffect]:
        effects: list[do.ReceiverEffect] = [self._life(now_ns)]
        for index, peer in enumerate(self.peers):
            used = [i for i in self._lanes_of(index) if self.lanes[i].link in (_Link.OPEN, _Link.DIALLING)]
            if used and now_ns - peer.heard_ns >= self.lease_ns:
                peer.heard_ns = now_ns
                for i in used:
                    effects += [do.HangUp(i), *self._lost(now_ns, ev.LaneLost(i, "silent"))]
                    if self.over:
                        return effects
            else:
                effects += [do.SendPing(i) for i in used[:1]]
        return effects

    @table.on(MOVING, ev.DeadlineDue, [S.FAILED], "the request's deadline")
    def _deadline(self, now_ns: int, event: ev.DeadlineDue) -> list[do.ReceiverEffect]:
        return self._fail("deadline", f"{self.coverage.missing_bytes} bytes were still missing", RemoteError)

    @table.on([*MOVING, S.LANDED], ev.Misused, [S.FAILED], "a sender that breaks the protocol is not believed")
    def _misused(self, now_ns: int, event: ev.Misused) -> list[do.ReceiverEffect]:
        return self._fail(event.code, event.detail, ProtocolError)

    @table.on(MOVING, ev.PeerCancelled, [S.FAILED], "a prefill that failed never completes: stop at once")
    def _cancelled(self, now_ns: int, event: ev.PeerCancelled) -> list[do.ReceiverEffect]:
        return self._fail(event.code, event.detail, PeerFailure)

    @table.on([*MOVING, S.LANDED], ev.Cancel, [S.FAILED], "our side gives up: tell the senders, free at once")
    def _cancel(self, now_ns: int, event: ev.Cancel) -> list[do.ReceiverEffect]:
        return self._fail(event.code, event.detail, RemoteError)

    @table.on([S.LANDED], ev.Applied, [S.APPLIED], "the engine has it: say so on every lane, and give the lanes back")
    def _applied(self, now_ns: int, event: ev.Applied) -> list[do.ReceiverEffect]:
        self.state = S.APPLIED
        effects = self._disarm()
        for index, lane in enumerate(self.lanes):
            if lane.link is _Link.OPEN:
                effects += [do.SendApplied(index), do.Retire(index)]
            elif lane.link is _Link.DIALLING:
                effects.append(do.HangUp(index))
            lane.link = _Link.GONE
        return [*effects, do.Ended("applied", "", None)]

    @table.on(MOVING, ev.Applied, [], "a bug of our caller: raises InvariantError")
    def _applied_early(self, now_ns: int, event: ev.Applied) -> list[do.ReceiverEffect]:
        raise self.bug("applied before it landed")

    Machine.ignore(table, (S.RECEIVING, S.LANDED, *OVER), (ev.Start,), "already started")
    Machine.ignore(table, (S.LANDED,), (ev.Arrived, ev.Corrupt, ev.Completed), "everything is here already")
    Machine.ignore(table, (S.LANDED,), (ev.PeerCancelled, ev.DeadlineDue), "the bytes are here: no longer the sender's")
    Machine.ignore(
        table, OVER, (ev.Opened, ev.LaneLost, ev.Refused, ev.Arrived, ev.Corrupt, ev.Completed, ev.Heard, ev.Misused,
                      ev.PeerCancelled, ev.Applied, ev.Cancel, ev.DeadlineDue, ev.LifeDue, ev.RetryDue), "late",
    )  # fmt: skip

    def _peer(self, lane: int) -> _Peer:
        return self.peers[lane // self.connections]

    def _lanes_of(self, peer: int) -> range:
        return range(peer * self.connections, (peer + 1) * self.connections)

    def _life(self, now_ns: int) -> do.ReceiverEffect:
        return do.ArmTimer(now_ns + max(1, self.lease_ns // 3), ev.LifeDue())

    def _dial(self, index: int) -> do.ReceiverEffect:
        self.lanes[index].link = _Link.DIALLING
        return do.Dial(index, self.coverage.have(), self.coverage.complete)

    def _settle(self) -> None:
        self.state = S.RECEIVING if any(lane.link is _Link.OPEN for lane in self.lanes) else S.DIALLING

    def _land(self) -> list[do.ReceiverEffect]:
        effects: list[do.ReceiverEffect] = []
        if self.state is not S.LANDED:
            self.state = S.LANDED
            effects.append(do.HandOver())
        for index, lane in enumerate(self.lanes):
            peer = self._peer(index)
            if lane.link is _Link.OPEN and not peer.told:
                peer.told = True
                effects.append(do.SendLanded(index))
        return effects

    def _disarm(self) -> list[do.ReceiverEffect]:
        timers: list[ev.Timer] = [ev.DeadlineDue(), ev.LifeDue()]
        timers += [ev.RetryDue(i) for i, lane in enumerate(self.lanes) if lane.link is _Link.WAITING]
        return [do.DisarmTimer(timer) for timer in timers]

    def _fail(self, code: str, detail: str, error: type[RemoteError]) -> list[do.ReceiverEffect]:
        self.state = S.FAILED
        effects = self._disarm()
        for index, lane in enumerate(self.lanes):
            if lane.link is _Link.OPEN:
                effects.append(do.SendCancel(index, code, detail))
            if lane.link in (_Link.OPEN, _Link.DIALLING):
                effects.append(do.HangUp(index))
            lane.link = _Link.GONE
        return [*effects, do.Ended(code, detail, error)]
