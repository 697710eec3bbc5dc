"""Following one publisher's stream of KV events: what to apply, what to ask for again, and how well the rest is known.

It knows sequence numbers, times and incarnations; it does not know what messages say, sockets or waiting (a question
that nobody answers comes in as `Failed`). Its states:

    CATCHING    asked for a snapshot, or for messages again; what comes live is kept until the answer is over
    FOLLOWING   every message is applied as it comes

From the first message on nothing is skipped. A hole is asked for, from the message before it, which must be the same
again: if it is not, another incarnation has the same numbers. What cannot be had again makes what was held worthless,
for removals may be among it: all is dropped, and what comes from then on is true but not all (PARTLY), until the
publisher clears its cache or starts anew. A number that was there already is an echo, unless it is from a later time:
then the publisher started anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar, assert_never

from prfaas.core.errors import InvariantError
from prfaas.core.index.places import Known

Body = TypeVar("Body")

MOST_KEPT = 10_000
"""Messages that are kept while an answer is awaited; beyond, it is asked anew."""


@dataclass(frozen=True, slots=True)
class Message(Generic[Body]):
    """One message. `clears`: all that was held before it is gone by its end, or it begins with nothing held."""

    sequence: int
    at_s: float
    body: Body
    epoch: int | None = None
    clears: bool = False


@dataclass(frozen=True, slots=True)
class Connected:
    """There is a publisher to ask."""


@dataclass(frozen=True, slots=True)
class Heard(Generic[Body]):
    """It published this."""

    message: Message[Body]


@dataclass(frozen=True, slots=True)
class Answered(Generic[Body]):
    """It answered this to question `ask`."""

    ask: int
    message: Message[Body]


@dataclass(frozen=True, slots=True)
class AnswerOver:
    """That was all of the answer to question `ask`."""

    ask: int


@dataclass(frozen=True, slots=True)
class Failed:
    """No answer, or no more of it, comes to question `ask`."""

    ask: int


@dataclass(frozen=True, slots=True)
class Restarted:
    """It is another incarnation, as others know: `epoch`, where its messages say theirs."""

    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Check:
    """Nothing was heard for a while: was anything missed?"""


FollowEvent = Connected | Heard[Body] | Answered[Body] | AnswerOver | Failed | Restarted | Check


@dataclass(frozen=True, slots=True)
class AskSnapshot:
    """Effect: ask for all that is held."""

    ask: int


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Effect: ask for all messages from number `sequence` on."""

    ask: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Apply(Generic[Body]):
    """Effect: apply what this says."""

    body: Body


@dataclass(frozen=True, slots=True)
class Forget:
    """Effect: drop all that was held. `restarted`: it is another incarnation."""

    restarted: bool


@dataclass(frozen=True, slots=True)
class Know:
    """Effect: so well is it known from now on."""

    known: Known


FollowEffect = AskSnapshot | AskAgain | Apply[Body] | Forget | Know


class State(Enum):
    """See the module."""

    CATCHING = "catching"
    FOLLOWING = "following"


class Follow(Generic[Body]):
    """One stream. `known` says how well what was applied stands for what is held."""

    def __init__(self, most_kept: int = MOST_KEPT) -> None:
        self.state = State.FOLLOWING
        self.known = Known.UNKNOWN
        self.lost = 0
        """Messages that were missed and could not be had again."""
        self._most_kept = most_kept
        self._next: int | None = None
        self._last: Message[Body] | None = None
        self._ask = 0
        self._snapshot = False
        self._checking = False
        self._answers = 0
        self._whole = False
        self._kept: list[Message[Body]] = []
        self._out: list[FollowEffect[Body]] = []

    def handle(self, now_ns: int, event: FollowEvent[Body]) -> Sequence[FollowEffect[Body]]:
        """What is to be done now that `event` has happened. Answers to questions that are past are passed over."""
        match event:
            case Heard(message):
                self._heard(message)
            case Answered(ask, message):
                if ask == self._ask and (self._checking or self.state is State.CATCHING):
                    self._answered(message)
            case AnswerOver(ask):
                if ask == self._ask and self.state is State.CATCHING:
                    self._over()
            case Failed(ask):
                if ask == self._ask and self.state is State.CATCHING:
                    self._failed()
            case Connected():
                if self._next is None and self.state is State.FOLLOWING:
                    self._ask_snapshot()
            case Restarted(epoch):
                if epoch == 0 or self._last is None or self._last.epoch is None or self._last.epoch < epoch:
                    self._restart()
                    self._ask_snapshot()
            case Check():
                if self._next is not None and self.state is State.FOLLOWING:
                    first = self._last.sequence if self._last is not None else self._next
                    self._ask_from(first, checking=True)
            case _:
                assert_never(event)
        out, self._out = self._out, []
        return out

    def validate(self) -> None:
        """Raises InvariantError when it contradicts itself."""
        if self.state is State.CATCHING and self.known is not Known.UNKNOWN:
            raise InvariantError("a stream that is caught up with is known")
        if self.state is State.FOLLOWING and self._kept:
            raise InvariantError("messages are kept, and nothing is awaited")

    # Live messages.

    def _heard(self, message: Message[Body]) -> None:
        if self._is_past(message):
            return
        if self._is_new_incarnation(message):
            self._restart()
            if message.sequence:
                self._ask_snapshot()
        if self.state is State.CATCHING:
            self._kept.append(message)
            if len(self._kept) > self._most_kept:
                self._kept = []
                self._forget(restarted=False)
                self._next = self._last = None
                self._ask_snapshot()
            return
        if self._next is None and message.sequence:
            self._kept.append(message)
            self._ask_snapshot()  # it is there now, if it was not when it was asked before
            return
        if self._next is None:
            self._begin_at(message)
        if message.sequence > self._expected:
            self._kept.append(message)
            self._catch_up()
        elif message.sequence == self._expected:
            self._apply(message)

    def _is_past(self, message: Message[Body]) -> bool:
        """Whether it is of an incarnation before the one that is followed."""
        last = self._last
        if last is None or last.epoch is None or message.epoch is None:
            return False
        return message.epoch < last.epoch

    def _is_new_incarnation(self, message: Message[Body]) -> bool:
        last = self._last
        if last is None:
            return False
        if message.epoch is not None and last.epoch is not None:
            return message.epoch > last.epoch
        return message.sequence <= last.sequence and message.at_s > last.at_s

    @property
    def _expected(self) -> int:
        assert self._next is not None
        return self._next

    def _begin_at(self, message: Message[Body]) -> None:
        """Nothing was to be had from before: this is where it begins."""
        self._next, self._whole = message.sequence, message.sequence == 0
        self._set(Known.WHOLLY if self._whole else Known.PARTLY)

    def _apply(self, message: Message[Body]) -> None:
        self._out.append(Apply(message.body))
        self._next, self._last = message.sequence + 1, message
        if message.clears:
            self._whole = True
            if self.state is State.FOLLOWING:
                self._set(Known.WHOLLY)

    # Questions and answers.

    def _ask_snapshot(self) -> None:
        self._set(Known.UNKNOWN)
        self.state, self._snapshot, self._checking, self._answers = State.CATCHING, True, False, 0
        self._ask += 1
        self._out.append(AskSnapshot(self._ask))

    def _catch_up(self) -> None:
        """From the message before the hole on."""
        self._whole = self.known is Known.WHOLLY
        self._set(Known.UNKNOWN)
        self._ask_from(self._last.sequence if self._last is not None else self._next or 0)

    def _ask_from(self, sequence: int, *, checking: bool = False) -> None:
        """`checking`: all is followed meanwhile, and the answer most likely is the message that it begins with."""
        if not checking:
            self.state = State.CATCHING
        self._snapshot, self._checking, self._answers = False, checking, 0
        self._ask += 1
        self._out.append(AskAgain(self._ask, sequence))

    def _answered(self, message: Message[Body]) -> None:
        self._answers += 1
        if self._snapshot:
            if self._answers == 1:
                self._forget(restarted=False)
                self._whole = True
            self._apply(message)
            return
        last = self._last
        if self._is_past(message):
            return
        if last is not None and message.epoch != last.epoch:
            self._restart()
            self._ask_snapshot()
            return
        if last is not None and message.sequence == last.sequence:
            if message.at_s != last.at_s:
                self._restart()
                self._ask_snapshot()
            return
        if self._next is None:
            self._whole = message.sequence == 0
            self._next = message.sequence
        if message.sequence > self._expected:
            self._skip_to(message.sequence)
            if self._checking:
                self._set(Known.PARTLY)
        if message.sequence == self._expected:
            self._apply(message)

    def _over(self) -> None:
        if self._snapshot and not self._answers:  # it knows no snapshots: all that it still has, then
            self._whole = False
            self._ask_from(0)
            return
        if self._next is None and not self._answers:
            self._next, self._whole = 0, True  # it has published nothing yet
        self._follow()

    def _failed(self) -> None:
        if self._snapshot and self._answers:  # half a snapshot
            self._forget(restarted=False)
            self._next, self._last, self._whole = None, None, False
        self._follow()

    def _follow(self) -> None:
        """The answer is over: what came live meanwhile is applied, and what is still missing is lost."""
        self.state = State.FOLLOWING
        kept, self._kept = self._kept, []
        if self._next is None and kept:
            self._begin_at(kept[0])
        for at, message in enumerate(kept):
            if self._is_past(message):
                continue
            if self._last is not None and message.epoch != self._last.epoch:  # it started anew since it answered
                for later in kept[at:]:
                    self._heard(later)
                return
            if message.sequence > self._expected:
                self._skip_to(message.sequence)
            if message.sequence == self._expected:
                self._apply(message)
        if self._next is not None:
            self._set(Known.WHOLLY if self._whole else Known.PARTLY)

    def _skip_to(self, sequence: int) -> None:
        self.lost += sequence - self._expected
        self._forget(restarted=False)
        self._next, self._whole = sequence, False

    # What is held.

    def _restart(self) -> None:
        self._forget(restarted=True)
        self.state, self._kept = State.FOLLOWING, []
        self._next, self._last, self._whole = None, None, False
        self._ask += 1  # what was asked of the one before is past

    def _forget(self, *, restarted: bool) -> None:
        self._out.append(Forget(restarted))
        self._set(Known.UNKNOWN)

    def _set(self, known: Known) -> None:
        if known is not self.known:
            self.known = known
            self._out.append(Know(known))
