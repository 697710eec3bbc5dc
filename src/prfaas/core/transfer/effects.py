"""What a transfer's machine wants done, as values. Drivers end their `match` over these with `assert_never`."""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.errors import RemoteError
from prfaas.core.transfer.chunk import Chunk
from prfaas.core.transfer.events import Timer
from prfaas.core.transfer.extent import Extent


@dataclass(frozen=True, slots=True)
class ArmTimer:
    """Bring the event `fires` at `at_ns`. A timer that would bring an equal event is replaced."""

    at_ns: int
    fires: Timer


@dataclass(frozen=True, slots=True)
class DisarmTimer:
    """Forget the timer that would bring `fires`."""

    fires: Timer


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection of `lane`, whatever its state; what was sent on it before still leaves. Not for reuse."""

    lane: int


@dataclass(frozen=True, slots=True)
class Retire:
    """The transfer is over on `lane`; its connection may serve another one."""

    lane: int


@dataclass(frozen=True, slots=True)
class SendCancel:
    """CANCEL on `lane`."""

    lane: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Ended:
    """Over on this side: forget the transfer. `error` is None when all went well, else what to raise it as."""

    cause: str
    detail: str
    error: type[RemoteError] | None


# Receiver only.


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect (or take an idle connection) and say HELLO with `have` and `landed`."""

    lane: int
    have: tuple[Extent, ...]
    landed: bool


@dataclass(frozen=True, slots=True)
class SendPing:
    """PING on `lane`."""

    lane: int


@dataclass(frozen=True, slots=True)
class SendLanded:
    """LANDED on `lane`."""

    lane: int


@dataclass(frozen=True, slots=True)
class SendApplied:
    """APPLIED on `lane`."""

    lane: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """Everything is here and verified: give the buffers to whoever waits for them."""


# Sender only.


@dataclass(frozen=True, slots=True)
class SendWelcome:
    """WELCOME on `lane`, whose connection (that which said HELLO) replaces any that it had."""

    lane: int
    round: int
    lease_ns: int


@dataclass(frozen=True, slots=True)
class SendRefuse:
    """REFUSE to the connection that said HELLO; the lane's own connection, if any, is not touched."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class SendData:
    """DATA frames for `chunks` on `lane`; `more` chunks wait behind them."""

    lane: int
    chunks: tuple[Chunk, ...]
    more: bool


@dataclass(frozen=True, slots=True)
class SendComplete:
    """COMPLETE on `lane`; `chunks` and `bytes` are what was put in all."""

    lane: int
    round: int
    chunks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Requeued:
    """`chunks` that were sent on a lost connection did not arrive and leave again (for the counters)."""

    chunks: int


@dataclass(frozen=True, slots=True)
class Wake:
    """There may be something to send: ask with LaneFree for every lane that can write."""


@dataclass(frozen=True, slots=True)
class Release:
    """Drop what was put: nothing is held here any more. Fields as in `Ended`."""

    cause: str
    detail: str
    error: type[RemoteError] | None


ReceiverEffect = (
    ArmTimer
    | DisarmTimer
    | HangUp
    | Retire
    | SendCancel
    | Ended
    | Dial
    | SendPing
    | SendLanded
    | SendApplied
    | HandOver
)
SenderEffect = (
    ArmTimer | DisarmTimer | HangUp | Retire | SendCancel | Ended | SendWelcome | SendRefuse | SendData | SendComplete
    | Requeued | Wake | Release
)  # fmt: skip
