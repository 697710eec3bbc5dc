"""What a cluster's head must do about its members."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from prfaas.core.ids import Epoch, NodeName
from prfaas.core.membership.events import Role


class State(Enum):
    """Where a member is."""

    UNKNOWN = "never heard of"
    ABSENT = "listed in the topology; it does not answer"
    PRESENT = "listed in the topology, and it answers: takes work"
    UNSEEN = "joined, its lease runs; it does not answer, yet or any more"
    JOINED = "joined, its lease runs, and it answers: takes work"
    DRAINING = "leaves with notice: takes no new work, finishes what it has"
    GONE = "left, replaced, or its lease ended: only its epoch is remembered"


WORKING = (State.PRESENT, State.JOINED)
"""Those that take new work."""
LEASED = (State.UNSEEN, State.JOINED, State.DRAINING)
"""Those that joined and are not gone."""
LISTED = (State.ABSENT, State.PRESENT)


@dataclass(frozen=True, slots=True)
class Watch:
    """Look at the node from now on, at `url` (and nowhere else)."""

    node: NodeName
    role: Role
    url: str


@dataclass(frozen=True, slots=True)
class Unwatch:
    """Look no more."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Lost:
    """Whatever runs on incarnation `epoch` of the node fails now: it will not come to an end there.

    `until_ns` is when that incarnation was last seen: a call that began later may have reached its successor. None:
    there is no successor, so that no call to the node can end well.
    """

    node: NodeName
    role: Role
    epoch: Epoch
    cause: str
    until_ns: int | None


@dataclass(frozen=True, slots=True)
class Moved:
    """The member came into another state: what it may be given changes. An entry of the log."""

    node: NodeName
    role: Role
    epoch: Epoch
    before: State
    after: State
    cause: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to who sent a Join, Renew or Leave: `code` is "" when all is well, else one word; lease in ns."""

    node: NodeName
    code: str
    detail: str
    lease_ns: int = 0


MemberEffect = Watch | Unwatch | Lost | Moved | Answer
