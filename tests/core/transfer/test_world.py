"""Both machines joined by lanes that break, corrupt and delay at random: what was put arrives once, or both sides fail.

No bytes here, only extents: the machines never see more.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, assert_never

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.transfer import effects as do
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.chunk import Chunk, split
from prfaas.core.transfer.extent import Extent, needed
from prfaas.core.transfer.receiver import Patience, Receiver, ReceiverState
from prfaas.core.transfer.sender import Sender, SenderState
from prfaas.testing.kv import hybrid_layout

LAYOUT = hybrid_layout()
PARTS = {(part.layer, part.name): part for part in LAYOUT.parts}
SECOND = 1_000_000_000
CLOSED = object()
LIFE_SIGNS = (ev.LifeDue, ev.LeaseDue, ev.DeadlineDue)


@dataclass(eq=False)
class Wire:
    """One connection: what is on its way, each way, oldest first. CLOSED is the last thing a way carries."""

    lane: int
    to_sender: deque[Any] = field(default_factory=deque)
    to_receiver: deque[Any] = field(default_factory=deque)
    receiver_has_it: bool = True
    sender_has_it: bool = False


class World:
    def __init__(
        self, seed: int, *, length: int, held: int, connections: int, tries: int = 6, corrupt: int = 3
    ) -> None:
        self.chance = random.Random(seed)
        self.now = 0
        patience = Patience(tries=tries, corrupt=corrupt)
        self.sender = Sender(LAYOUT, length, lease_ns=15 * SECOND)
        self.receiver = Receiver(
            LAYOUT, length, held, peers=1, connections=connections, deadline_ns=10**15, patience=patience
        )
        self.held = held
        self.wires: list[Wire] = []
        self.dialling: dict[int, do.Dial] = {}
        self.timers: dict[str, dict[ev.Timer, int]] = {"receiver": {}, "sender": {}}
        self.todo: deque[Chunk] = deque()
        for key, extent in enumerate(needed(LAYOUT, length)):
            self.todo += split(PARTS[extent.layer, extent.part], extent, key, 2000)
        self.finished = False
        self.arrived: Counter[Extent] = Counter()
        self.requeued = 0
        self.lost_chunks = 0
        self.handed_over = self.released = 0
        self.ends: dict[str, do.Ended] = {}
        self.hello_wire: Wire | None = None
        self.say("sender", ev.Start())
        self.say("receiver", ev.Start())

    # The two drivers.

    def say(self, who: str, event: Any) -> None:
        machine: Any = self.sender if who == "sender" else self.receiver
        self.timers[who].pop(event, None)
        if isinstance(event, ev.Arrived) and machine.state in (ReceiverState.DIALLING, ReceiverState.RECEIVING):
            self.arrived[event.extent] += 1
        for effect in machine.handle(self.now, event):
            self.do_sender(effect) if who == "sender" else self.do_receiver(effect)
        machine.validate()

    def wire(self, lane: int, who: str) -> Wire | None:
        for wire in self.wires:
            if wire.lane == lane and (wire.sender_has_it if who == "sender" else wire.receiver_has_it):
                return wire
        return None

    def leave(self, wire: Wire, who: str) -> None:
        """`who` hangs up: what it said before still arrives, what comes to it is dropped."""
        if who == "sender":
            wire.sender_has_it = False
            wire.to_receiver.append(CLOSED)
            wire.to_sender.clear()
        else:
            wire.receiver_has_it = False
            wire.to_sender.append(CLOSED)
            self.lost_chunks += sum(isinstance(m, Chunk) for m in wire.to_receiver)
            wire.to_receiver.clear()

    def do_receiver(self, effect: do.ReceiverEffect) -> None:
        match effect:
            case do.ArmTimer(at_ns, fires):
                self.timers["receiver"][fires] = at_ns
            case do.DisarmTimer(fires):
                self.timers["receiver"].pop(fires, None)
            case do.Dial(lane):
                assert self.wire(lane, "receiver") is None
                assert lane not in self.dialling
                self.dialling[lane] = effect
            case do.HangUp(lane) | do.Retire(lane):
                self.dialling.pop(lane, None)
                wire = self.wire(lane, "receiver")
                if wire is not None:
                    self.leave(wire, "receiver")
            case do.SendPing(lane) | do.SendLanded(lane) | do.SendApplied(lane) | do.SendCancel(lane):
                wire = self.wire(lane, "receiver")
                if wire is not None:
                    wire.to_sender.append(effect)
                else:
                    assert isinstance(effect, do.SendPing)
            case do.HandOver():
                self.handed_over += 1
            case do.Ended():
                assert "receiver" not in self.ends
                self.ends["receiver"] = effect
            case _:
                assert_never(effect)

    def do_sender(self, effect: do.SenderEffect) -> None:
        match effect:
            case do.ArmTimer(at_ns, fires):
                self.timers["sender"][fires] = at_ns
            case do.DisarmTimer(fires):
                self.timers["sender"].pop(fires, None)
            case do.SendWelcome(lane):
                old = self.wire(lane, "sender")
                if old is not None:
                    self.leave(old, "sender")
                assert self.hello_wire is not None
                self.hello_wire.sender_has_it = True
                self.hello_wire.to_receiver.append(effect)
            case do.SendRefuse():
                assert self.hello_wire is not None
                self.hello_wire.to_receiver.append(effect)
            case do.SendData(lane, chunks):
                wire = self.wire(lane, "sender")
                assert wire is not None
                wire.to_receiver.extend(chunks)
            case do.SendComplete(lane) | do.SendCancel(lane):
                wire = self.wire(lane, "sender")
                assert wire is not None
                wire.to_receiver.append(effect)
            case do.HangUp(lane) | do.Retire(lane):
                wire = self.wire(lane, "sender")
                assert wire is not None
                self.leave(wire, "sender")
            case do.Requeued(chunks_again):
                self.requeued += chunks_again
            case do.Release():
                self.released += 1
            case do.Ended():
                assert "sender" not in self.ends
                self.ends["sender"] = effect
            case do.Wake():
                pass
            case _:
                assert_never(effect)

    # What can happen.

    def connect(self, lane: int, works: bool) -> None:
        dial = self.dialling.pop(lane)
        if not works:
            self.say("receiver", ev.LaneLost(lane, "refused"))
            return
        wire = Wire(lane)
        wire.to_sender.append(ev.Hello(lane, "session", self.held, dial.have, dial.landed))
        self.wires.append(wire)

    def deliver_to_sender(self, wire: Wire) -> None:
        match wire.to_sender.popleft():
            case ev.Hello() as hello:
                self.hello_wire = wire
                self.say("sender", hello)
            case _ if not wire.sender_has_it:
                pass
            case do.SendPing():
                self.say("sender", ev.Heard())
            case do.SendLanded(lane):
                self.say("sender", ev.PeerLanded(lane))
            case do.SendApplied(lane):
                self.say("sender", ev.PeerApplied(lane))
            case do.SendCancel(lane, code, detail):
                self.say("sender", ev.PeerCancelled(lane, code, detail))
            case _:
                wire.sender_has_it = False
                self.say("sender", ev.LaneLost(wire.lane, "closed"))

    def deliver_to_receiver(self, wire: Wire, damaged: bool = False) -> None:
        message = wire.to_receiver.popleft()
        if not wire.receiver_has_it:
            self.lost_chunks += isinstance(message, Chunk)
            return
        match message:
            case Chunk() if damaged:
                self.lost_chunks += 1
                self.say("receiver", ev.Corrupt(wire.lane))
            case Chunk():
                self.say("receiver", ev.Arrived(wire.lane, message.extent))
            case do.SendWelcome(lane, round_, lease_ns):
                self.say("receiver", ev.Opened(lane, 1, lease_ns, round_))
            case do.SendComplete(lane, round_):
                self.say("receiver", ev.Completed(lane, round_))
            case do.SendCancel(lane, code, detail):
                self.say("receiver", ev.PeerCancelled(lane, code, detail))
            case do.SendRefuse(code, detail):
                self.leave(wire, "receiver")
                self.say("receiver", ev.Refused(wire.lane, code, detail))
            case _:
                wire.receiver_has_it = False
                self.say("receiver", ev.LaneLost(wire.lane, "closed"))

    def cut(self, wire: Wire) -> None:
        """The network breaks it: what is on its way is lost; each side notices in its own time."""
        self.lost_chunks += sum(isinstance(m, Chunk) for m in wire.to_receiver)
        wire.to_receiver.clear()
        wire.to_sender.clear()
        wire.to_receiver.append(CLOSED)
        wire.to_sender.append(CLOSED)

    def steps(self, rough: bool) -> list[tuple[float, Any]]:
        found: list[tuple[float, Any]] = []
        for lane in self.dialling:
            found.append((3, lambda lane=lane: self.connect(lane, not rough or self.chance.random() < 0.8)))
        for wire in self.wires:
            if wire.to_sender:
                found.append((3, lambda w=wire: self.deliver_to_sender(w)))
            if wire.to_receiver:
                found.append((5, lambda w=wire: self.deliver_to_receiver(w)))
                if rough and isinstance(wire.to_receiver[0], Chunk):
                    found.append((0.05, lambda w=wire: self.deliver_to_receiver(w, damaged=True)))
            if rough and (wire.sender_has_it or wire.receiver_has_it):
                found.append((0.15, lambda w=wire: self.cut(w)))
        if self.todo:
            found.append((3, lambda: self.say("sender", ev.Put((self.todo.popleft(),)))))
        elif not self.finished:
            found.append((1, self.finish))
        for lane in list(self.sender.lanes):
            if self.sender.wants(lane):
                budget = self.chance.choice([1, 300, 5000])
                found.append((4, lambda lane=lane, budget=budget: self.free(lane, budget)))
        retries = [t for t in self.timers["receiver"] if isinstance(t, ev.RetryDue)]
        for timer in retries:
            found.append((1, lambda t=timer: self.fire("receiver", t)))
        if ev.LifeDue() in self.timers["receiver"]:
            # As in life: a sign of life comes between two looks for it, unless the peer is silent.
            found.append((0.1, self.live))
        return found

    def free(self, lane: int, budget: int) -> None:
        self.sender.next_batch(budget)
        self.say("sender", ev.LaneFree(lane, budget))

    def finish(self) -> None:
        self.finished = True
        self.say("sender", ev.Finish())

    def live(self) -> None:
        self.say("receiver", ev.Heard(0))
        self.fire("receiver", ev.LifeDue())

    def fire(self, who: str, timer: ev.Timer) -> None:
        self.now = max(self.now, self.timers[who][timer])
        self.say(who, timer)

    def run(self, rough_steps: int) -> None:
        """A while of trouble, then calm until nothing can happen but time-outs."""
        for count in range(100_000):
            rough = count < rough_steps
            steps = self.steps(rough)
            lively = [s for s in steps if s[0] > 0.1]
            if not lively:
                return
            weights = [w for w, _ in steps]
            self.chance.choices([s for _, s in steps], weights)[0]()
        raise AssertionError("does not come to rest")


@settings(max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 150), st.integers(1, 4), st.integers(0, 400), st.data())
def test_everything_arrives_exactly_once_whatever_breaks(
    seed: int, length: int, connections: int, rough_steps: int, data: st.DataObject
) -> None:
    held = data.draw(st.integers(0, length))
    world = World(seed, length=length, held=held, connections=connections, tries=10**6, corrupt=10**6)
    world.run(rough_steps)
    assert world.receiver.state is ReceiverState.LANDED
    assert world.receiver.coverage.complete
    assert world.handed_over == 1
    assert set(world.arrived.values()) <= {1}, "something was sent again although it had arrived"
    assert world.requeued <= world.lost_chunks
    # However LANDED was lost, it was said again: the sender holds nothing.
    assert world.released == 1
    world.say("receiver", ev.Applied())
    world.run(0)
    assert world.ends["receiver"].error is None
    if world.sender.state is not SenderState.CLOSED:
        # APPLIED was lost with its connection: the lease ends what is left.
        world.fire("sender", ev.LeaseDue())
    assert world.released == 1
    assert world.sender.over
    assert world.timers == {"receiver": {}, "sender": {}}


@settings(max_examples=100)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 150), st.sampled_from(["abort", "cancel", "both"]))
def test_giving_up_at_any_moment_frees_both_sides(seed: int, connections: int, when: int, who: str) -> None:
    world = World(seed, length=100, held=0, connections=connections)
    for _ in range(when):
        steps = world.steps(rough=True)
        world.chance.choices([s for _, s in steps], [w for w, _ in steps])[0]()
        if world.ends:
            break
    if who in ("abort", "both"):
        world.say("sender", ev.Abort("engine", "it broke"))
    if who in ("cancel", "both"):
        world.say("receiver", ev.Cancel("client", "it left"))
    world.run(0)
    for name, machine in (("sender", world.sender), ("receiver", world.receiver)):
        for timer in sorted(world.timers[name], key=world.timers[name].__getitem__):
            if isinstance(timer, LIFE_SIGNS) and timer in world.timers[name] and not machine.over:
                world.fire(name, timer)
                world.run(0)
    if world.receiver.state is ReceiverState.LANDED:
        world.say("receiver", ev.Applied())
        world.run(0)
        if not world.sender.over:
            world.fire("sender", ev.LeaseDue())
    assert world.sender.over
    assert world.receiver.over
    assert world.released == 1
    assert world.timers == {"receiver": {}, "sender": {}}


@pytest.mark.parametrize("connections", [1, 3])
def test_a_sender_that_puts_too_little_is_found_out(connections: int) -> None:
    world = World(1, length=100, held=0, connections=connections)
    world.todo.pop()
    world.run(0)
    assert world.ends["receiver"].cause == "incomplete"
    assert world.receiver.state is ReceiverState.FAILED
    assert world.sender.state is SenderState.FAILED


def test_a_peer_that_cannot_be_reached_is_given_up_after_so_many_tries() -> None:
    world = World(1, length=100, held=0, connections=1, tries=4)
    tries = 0
    while "receiver" not in world.ends:
        if world.dialling:
            world.connect(0, works=False)
            tries += 1
        else:
            world.fire("receiver", ev.RetryDue(0))
    assert (tries, world.ends["receiver"].cause) == (4, "unreachable")
    assert world.now == (50 + 100 + 200) * 1_000_000
