"""What can happen to a request at the gateway. `attempt` counts placements of one request; late news of an old one
is told apart by it."""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.ids import ClusterName, LinkName, RequestId
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.copying import Copy


@dataclass(frozen=True, slots=True)
class Arrived:
    """A valid client request of `tokens` prompt tokens. `stays` names why it must not be handed over, if so. `cached`:
    what of it is cached where, as of now."""

    request: RequestId
    tokens: int
    deadline_ns: int
    stays: str = ""
    cached: Cached = NOTHING


@dataclass(frozen=True, slots=True)
class CreditGranted:
    """The decode node holds landing room for the attempt, for `receiver`: `kv_bytes`; 0 when it does not say."""

    request: RequestId
    attempt: int
    receiver: str
    kv_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PrefillQueued:
    """The source's head has it in its queue."""

    request: RequestId
    attempt: int
    position: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """An idle node of another cluster, over `link`, takes the prefill, which waits. `copy`: as in `Place`. The router
    itself says so."""

    request: RequestId
    attempt: int
    cluster: ClusterName
    link: LinkName
    remote: bool
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class PrefillBound:
    """A node was chosen; `node` is its name. Where to dial and the ticket are the driver's business."""

    request: RequestId
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class PrefillDone:
    """The prefill side has nothing left to do for the attempt."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class LegFailed:
    """A leg failed: `leg` is credit, prefill or decode; `code` one word; `fatal`: no other try can help.

    `status` is the HTTP status that a fatal failure is answered with.
    """

    request: RequestId
    attempt: int
    leg: str
    code: str
    detail: str
    fatal: bool = False
    status: int = 502


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The decode node began to answer: from here on the client sees this attempt."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The whole answer went out."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class ClientGone:
    """The client left before its answer was whole."""

    request: RequestId


@dataclass(frozen=True, slots=True)
class NodeLost:
    """The decode node of the attempt is gone, or the incarnation of it that the attempt was given to."""

    request: RequestId
    attempt: int
    detail: str


@dataclass(frozen=True, slots=True)
class DeadlinePassed:
    """The request's time is over."""

    request: RequestId


RequestEvent = (
    Arrived
    | CreditGranted
    | PrefillQueued
    | Claimed
    | PrefillBound
    | PrefillDone
    | LegFailed
    | FirstToken
    | Answered
    | ClientGone
    | NodeLost
    | DeadlinePassed
)
