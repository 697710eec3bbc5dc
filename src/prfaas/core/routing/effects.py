"""What the gateway's driver must do for a request. Legs are started and cancelled by `(request, attempt)`."""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.routing.copying import Copy


@dataclass(frozen=True, slots=True)
class Decided:
    """One decision, with its reasons as data: an entry of the decision log.

    `cluster` is where prefill runs, `node` where decode runs.
    """

    request: RequestId
    attempt: int
    at_ns: int
    route: str
    cluster: ClusterName
    node: NodeName
    reason: str
    tokens: int
    threshold: int
    after: str = ""
    """The failure that this decision answers, as `leg:code`."""
    unknown: tuple[str, ...] = ()
    """Signals that the policy lacked: `speed:CLUSTER`, `bandwidth:CLUSTER`, `kv_bytes`, `cache:CLUSTER`. Without a
    speed the threshold rule decided."""
    scores: tuple[float, ...] = ()
    """What the policy weighed, smaller is better; see `policy.Answer`."""
    cached: int = 0
    """Of `tokens`, those that the place was expected to have cached."""
    copy: Copy | None = None
    """What becomes of a longer prefix that another cluster has, if one has."""


@dataclass(frozen=True, slots=True)
class AskCredit:
    """Ask `node` for landing room, waiting there until it is granted."""

    request: RequestId
    attempt: int
    node: NodeName


@dataclass(frozen=True, slots=True)
class ReleaseCredit:
    """Give the landing room of the attempt back, unless a transfer uses it already, which gives it back itself."""

    request: RequestId
    attempt: int
    node: NodeName


@dataclass(frozen=True, slots=True)
class StartPrefill:
    """Ask `cluster` to prefill for `receiver` over `link`."""

    request: RequestId
    attempt: int
    cluster: ClusterName
    link: LinkName
    receiver: str


@dataclass(frozen=True, slots=True)
class StartDecode:
    """Send the client's body to `node`: with what the prefill was bound to (`handover`), or to compute it whole."""

    request: RequestId
    attempt: int
    node: NodeName
    handover: bool


@dataclass(frozen=True, slots=True)
class CancelPrefill:
    """End the prefill leg of the attempt."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class CancelDecode:
    """End the decode leg of the attempt."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class Relay:
    """The client may see what the decode leg of the attempt says."""

    request: RequestId
    attempt: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the client with one error; nothing of an answer was sent before."""

    request: RequestId
    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The request is over: book it. `route`: remote, local, or none if it was never placed. `outcome`: ok, refused,
    broken (after its first token), gone."""

    request: RequestId
    route: str
    outcome: str


RequestEffect = (
    Decided
    | AskCredit
    | ReleaseCredit
    | StartPrefill
    | StartDecode
    | CancelPrefill
    | CancelDecode
    | Relay
    | Refuse
    | Ended
)
