"""Following a publisher that loses messages, restarts, and may or may not know what it said: no claim is false."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prfaas.core.index.follow import (
    Answered,
    AnswerOver,
    Apply,
    AskAgain,
    AskSnapshot,
    Check,
    Connected,
    Failed,
    Follow,
    Forget,
    Heard,
    Know,
    Message,
    Restarted,
    State,
)
from prfaas.core.index.places import Known


def said(sequence: int, body: Any = None, *, at_s: float | None = None, clears: bool = False) -> Message[Any]:
    return Message(sequence, float(sequence) if at_s is None else at_s, body, None, clears)


def test_from_the_first_message_all_is_known() -> None:
    follow: Follow[Any] = Follow()
    assert follow.handle(0, Connected()) == [AskSnapshot(1)]
    assert follow.handle(0, AnswerOver(1)) == [AskAgain(2, 0)]
    assert follow.handle(0, Answered(2, said(0, "a"))) == [Apply("a")]
    assert follow.handle(0, Heard(said(1, "b"))) == []
    assert follow.handle(0, AnswerOver(2)) == [Apply("b"), Know(Known.WHOLLY)]
    assert follow.handle(0, Heard(said(2, "c"))) == [Apply("c")]
    assert follow.handle(0, Heard(said(1, "b"))) == []  # an echo


def test_a_publisher_that_said_nothing_yet_holds_nothing() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    follow.handle(0, AnswerOver(1))
    assert follow.handle(0, AnswerOver(2)) == [Know(Known.WHOLLY)]


def test_whoever_cannot_be_asked_is_known_partly_until_it_clears() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    follow.handle(0, Failed(1))
    assert follow.known is Known.UNKNOWN
    assert follow.handle(0, Heard(said(7, "x"))) == [AskSnapshot(2)]  # it was perhaps not there yet
    assert follow.handle(0, Failed(2)) == [Know(Known.PARTLY), Apply("x")]
    assert follow.handle(0, Heard(said(8, "y", clears=True))) == [Apply("y"), Know(Known.WHOLLY)]


def test_a_snapshot_is_what_is_held() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    assert follow.handle(0, Heard(said(41, "live"))) == []
    assert follow.handle(0, Answered(1, said(40, "one", clears=True))) == [Forget(False), Apply("one")]
    assert follow.handle(0, Answered(1, said(40, "two"))) == [Apply("two")]
    assert follow.handle(0, AnswerOver(1)) == [Apply("live"), Know(Known.WHOLLY)]


def test_half_a_snapshot_is_nothing() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    follow.handle(0, Answered(1, said(40, "one")))
    assert Forget(False) in follow.handle(0, Failed(1))
    assert follow.known is Known.UNKNOWN


def following(*, upto: int = 3) -> Follow[Any]:
    follow: Follow[Any] = Follow()
    for sequence in range(upto):
        follow.handle(0, Heard(said(sequence)))
    assert follow.known is Known.WHOLLY
    return follow


def test_a_gap_is_unknown_until_it_is_replayed() -> None:
    follow = following()
    assert follow.handle(0, Heard(said(5, "five"))) == [Know(Known.UNKNOWN), AskAgain(1, 2)]
    assert follow.handle(0, Answered(1, said(2))) == []
    assert follow.handle(0, Answered(1, said(3, "three"))) == [Apply("three")]
    assert follow.handle(0, Answered(1, said(4, "four"))) == [Apply("four")]
    assert follow.handle(0, AnswerOver(1)) == [Apply("five"), Know(Known.WHOLLY)]
    assert follow.lost == 0


@pytest.mark.parametrize("end", [AnswerOver(1), Failed(1)])
def test_a_gap_that_cannot_be_replayed_makes_all_worthless(end: Any) -> None:
    follow = following()
    follow.handle(0, Heard(said(5, "five")))
    assert follow.handle(0, end) == [Forget(False), Apply("five"), Know(Known.PARTLY)]
    assert follow.lost == 2


def test_numbers_that_go_on_in_another_incarnation_are_found_out() -> None:
    follow = following()
    follow.handle(0, Heard(said(5, "five", at_s=90)))
    assert follow.handle(0, Answered(1, said(2, at_s=80))) == [Forget(True), AskSnapshot(3)]
    assert follow.handle(0, Answered(1, said(3, at_s=81))) == []  # of a question that is past


def test_a_restart() -> None:
    follow = following()
    assert follow.handle(0, Heard(said(0, "new", at_s=50))) == [
        Forget(True),
        Know(Known.UNKNOWN),
        Know(Known.WHOLLY),
        Apply("new"),
    ]
    assert follow.handle(0, Restarted())[0] == Forget(True)
    assert follow.state is State.CATCHING
    old = Message(9, 200.0, "old", 4)
    follow = Follow()
    follow.handle(0, Heard(Message(0, 100.0, "mine", 5)))
    assert follow.handle(0, Heard(old)) == []
    assert Forget(True) in follow.handle(0, Heard(Message(0, 101.0, "next", 6)))
    assert follow.handle(0, Restarted(6)) == []  # known already
    assert Forget(True) in follow.handle(0, Restarted(7))


def test_what_was_kept_of_the_incarnation_before_is_not_applied_to_the_next() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    follow.handle(0, Heard(Message(1, 1.0, "old", 1)))
    follow.handle(0, AnswerOver(1))
    assert follow.handle(0, Answered(2, Message(0, 2.0, "new", 2))) == [Apply("new")]
    assert follow.handle(0, AnswerOver(2)) == [Know(Known.WHOLLY)]


def test_what_was_kept_of_the_next_incarnation_ends_the_one_that_answered() -> None:
    follow: Follow[Any] = Follow()
    follow.handle(0, Connected())
    follow.handle(0, Heard(Message(1, 3.0, "new", 2)))
    follow.handle(0, AnswerOver(1))
    follow.handle(0, Answered(2, Message(0, 1.0, "old", 1)))
    assert follow.handle(0, AnswerOver(2)) == [Forget(True), AskSnapshot(4)]
    assert follow.known is Known.UNKNOWN


def test_a_check_finds_what_was_missed_in_silence() -> None:
    follow = following()
    assert follow.handle(0, Check()) == [AskAgain(1, 2)]
    assert follow.known is Known.WHOLLY
    assert follow.handle(0, Answered(1, said(2))) == []
    assert follow.handle(0, Answered(1, said(3, "three"))) == [Apply("three")]
    assert follow.handle(0, AnswerOver(1)) == []
    assert follow.handle(0, Check()) == [AskAgain(2, 3)]
    assert follow.handle(0, Answered(2, said(9, "nine"))) == [
        Forget(False),
        Know(Known.UNKNOWN),
        Know(Known.PARTLY),
        Apply("nine"),
    ]


def test_what_is_kept_is_bounded() -> None:
    follow: Follow[Any] = Follow(most_kept=3)
    follow.handle(0, Connected())
    for sequence in range(3):
        assert follow.handle(0, Heard(said(sequence))) == []
    assert follow.handle(0, Heard(said(3))) == [Forget(False), AskSnapshot(2)]


class Stream(RuleBasedStateMachine):
    """A publisher of what it adds to and removes from a set; what is claimed of it is true."""

    @initialize(buffer=st.integers(0, 6), snapshots=st.booleans(), epochs=st.booleans())
    def start(self, buffer: int, snapshots: bool, epochs: bool) -> None:
        self.buffer = deque[Message[Any]](maxlen=buffer)
        self.snapshots, self.epochs = snapshots, epochs
        self.epoch, self.sequence, self.now = 1, 0, 0
        self.truth: set[int] = set()
        self.history: dict[tuple[int, int], set[int]] = {}
        self.follow: Follow[Any] = Follow(most_kept=5)
        self.claim: set[int] = set()
        self.wire: deque[Message[Any]] = deque()
        self.asked: list[Any] = []
        self.at, self.said = (0, 0), Known.UNKNOWN
        self.post(Connected())

    def post(self, event: Any) -> None:
        for effect in self.follow.handle(self.now, event):
            if isinstance(effect, Apply):
                self.at, operation = effect.body
                operation(self.claim)
            elif isinstance(effect, Forget):
                self.claim, self.at = set(), (0, 0)
            elif isinstance(effect, AskSnapshot | AskAgain):
                self.asked.append(effect)
            else:
                self.said = effect.known
        assert self.said is self.follow.known
        self.follow.validate()

    @rule(item=st.integers(0, 4), kind=st.sampled_from(["add", "add", "remove", "clear"]), arrives=st.integers(0, 3))
    def publish(self, item: int, kind: str, arrives: int) -> None:
        def operation(items: set[int]) -> None:
            if kind == "clear":
                items.clear()
            elif kind == "add":
                items.add(item)
            else:
                items.discard(item)

        operation(self.truth)
        self.now += 1
        name = (self.epoch, self.sequence)
        self.history[name] = set(self.truth)
        epoch = self.epoch if self.epochs else None
        message = Message(self.sequence, float(self.now), (name, operation), epoch, kind == "clear")
        self.buffer.append(message)
        self.sequence += 1
        if arrives:
            self.wire.append(message)

    @rule(again=st.booleans())
    def deliver(self, again: bool) -> None:
        if self.wire:
            message = self.wire[0]
            if not again:
                self.wire.popleft()
            self.post(Heard(message))

    @rule(told=st.booleans())
    def restart(self, told: bool) -> None:
        self.epoch, self.sequence = self.epoch + 1, 0
        self.truth = set()
        self.buffer.clear()
        self.wire.clear()
        if told or not self.epochs:
            # Without epochs in messages the roster must say so: numbers may go on as if nothing had been.
            self.post(Restarted())

    @rule(answers=st.integers(0, 9), ends=st.booleans())
    def answer(self, answers: int, ends: bool) -> None:
        if not self.asked:
            return
        question = self.asked.pop(0)
        ask = question.ask
        if isinstance(question, AskSnapshot):
            found = []
            if self.snapshots and self.sequence:
                items, name = set(self.truth), (self.epoch, self.sequence - 1)

                def first(claim: set[int]) -> None:
                    claim.clear()

                def second(claim: set[int]) -> None:
                    claim |= items

                epoch = self.epoch if self.epochs else None
                one = Message(self.sequence - 1, float(self.now), (name, first), epoch, True)
                found = [one, Message(self.sequence - 1, float(self.now), (name, second), epoch)]
        else:
            found = [message for message in self.buffer if message.sequence >= question.sequence]
        for message in found[: answers if not ends else None]:
            self.post(Answered(ask, message))
        self.post(AnswerOver(ask) if ends else Failed(ask))

    @rule()
    def check(self) -> None:
        self.post(Check())

    @invariant()
    def no_claim_is_false(self) -> None:
        if not hasattr(self, "follow") or self.follow.known is Known.UNKNOWN:
            return
        truth = self.history.get(self.at, set())
        assert self.claim <= truth
        if self.follow.known is Known.WHOLLY:
            assert self.claim == truth


TestStream = Stream.TestCase
TestStream.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
