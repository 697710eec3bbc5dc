"""What can happen to a transfer, as values. Receiver and sender share the module; each table says which it takes.

A lane is one connection of one transfer, numbered 0.. on each side; a receiver with several peers (ranks) numbers
peer p's connection i as p * connections + i.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.transfer.chunk import Chunk
from prfaas.core.transfer.extent import Extent


@dataclass(frozen=True, slots=True)
class Start:
    """The transfer exists from now."""


@dataclass(frozen=True, slots=True)
class Heard:
    """Bytes came from the other side: it lives. `peer` is 0 for a sender, which has one receiver."""

    peer: int = 0


@dataclass(frozen=True, slots=True)
class LaneLost:
    """A connection of this transfer broke, or could not be made."""

    lane: int
    detail: str


@dataclass(frozen=True, slots=True)
class Misused:
    """The other side sent what the protocol does not allow."""

    lane: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class PeerCancelled:
    """The other side stopped the transfer, and says why."""

    lane: int
    code: str
    detail: str


# Receiver only.


@dataclass(frozen=True, slots=True)
class Opened:
    """WELCOME: the sender took this connection. `round` counts the sender's welcomes, `lease_ns` is its patience."""

    lane: int
    epoch: int
    lease_ns: int
    round: int


@dataclass(frozen=True, slots=True)
class Refused:
    """REFUSE: the listener does not take this connection."""

    lane: int
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Arrived:
    """A chunk is here, verified, and in its place."""

    lane: int
    extent: Extent


@dataclass(frozen=True, slots=True)
class Corrupt:
    """A chunk is here and its checksum is wrong."""

    lane: int


@dataclass(frozen=True, slots=True)
class Completed:
    """COMPLETE: as of `round`, the sender has put everything, and nothing more follows on this connection."""

    lane: int
    round: int


@dataclass(frozen=True, slots=True)
class Applied:
    """The engine has the KV."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Our own side gives up."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """Timer: the transfer's deadline."""


@dataclass(frozen=True, slots=True)
class LifeDue:
    """Timer: time to show a sign of life, and to look for the peers'."""


@dataclass(frozen=True, slots=True)
class RetryDue:
    """Timer: dial this lane again."""

    lane: int


# Sender only.


@dataclass(frozen=True, slots=True)
class Put:
    """Chunks of one extent that the engine has computed."""

    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Finish:
    """The engine has put everything."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A connection with a valid ticket for this transfer. `have` is what the receiver has already (a resume)."""

    lane: int
    session: str
    held: int
    have: tuple[Extent, ...]
    landed: bool


@dataclass(frozen=True, slots=True)
class LaneFree:
    """The connection can take `budget_bytes` more (at least one chunk)."""

    lane: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class PeerLanded:
    """LANDED: the receiver owns the bytes."""

    lane: int


@dataclass(frozen=True, slots=True)
class PeerApplied:
    """APPLIED: the transfer is over on this connection."""

    lane: int


@dataclass(frozen=True, slots=True)
class Abort:
    """Our own side gives up."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """Timer: nothing was heard from a receiver for a whole lease."""


Timer = DeadlineDue | LifeDue | RetryDue | LeaseDue
ReceiverEvent = (
    Start | Opened | LaneLost | Refused | Arrived | Corrupt | Completed | Heard | Misused | PeerCancelled
    | Applied | Cancel | DeadlineDue | LifeDue | RetryDue
)  # fmt: skip
SenderEvent = (
    Start | Put | Finish | Hello | LaneFree | LaneLost | Heard | PeerLanded | PeerApplied | Misused | PeerCancelled
    | Abort | LeaseDue
)  # fmt: skip
