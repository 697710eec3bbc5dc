"""The live machines of a PD cluster and those that prefill for it, as one: a router, and a queue for each cluster.

It knows how the two kinds hand over to each other, which `gateway.legs` and `cluster.head` do over a network: here
nothing takes time but prefill, for as long as the cluster's curve says. One prefill a node. KV is there when its
prefill is over. So what it decides can be compared with the simulator, decision by decision.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prfaas.core.ids import ClusterName, Epoch, LinkName, NodeName, RequestId, TransferId
from prfaas.core.machine import Arm, Disarm
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    Relay,
    ReleaseCredit,
    StartDecode,
    StartPrefill,
)
from prfaas.core.routing.events import (
    Answered,
    CreditGranted,
    FirstToken,
    LegFailed,
    PrefillBound,
    PrefillDone,
    PrefillQueued,
)
from prfaas.core.routing.queue import (
    Dispatch,
    Finished,
    NodeGone,
    NodeSeen,
    Position,
    PrefillQueue,
    QueueEvent,
    Reject,
    Submit,
    Withdraw,
)
from prfaas.core.routing.router import Router, RouterEvent, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeSeen, Source, SourceSeen
from prfaas.sim.setup import Setup

LONGEST = 1 << 30
NEVER_LATE_NS = 1 << 60
DECODER = NodeName("d0")


@dataclass(frozen=True, slots=True)
class ForQueue:
    """`event` is for the queue of `cluster`."""

    cluster: ClusterName
    event: QueueEvent


@dataclass(frozen=True, slots=True)
class Computed:
    """The prefill of `job` is over on its node."""

    cluster: ClusterName
    job: TransferId


TwinEvent = RouterEvent | ForQueue | Computed
Effect = Decided | Ended | Refuse | Arm[Any] | Disarm


@dataclass(slots=True)
class _Leg:
    request: RequestId
    attempt: int
    cluster: ClusterName
    tokens: int


class Twin:
    """The first cluster of `setup` is our own. `curves`: how long a prompt takes on a node, by cluster."""

    def __init__(self, setup: Setup, curves: Sequence[Curve], policy: str, threshold: int) -> None:
        self._setup = setup
        names = [ClusterName(one.name) for one in setup.clusters]
        self._curves = dict(zip(names, curves, strict=True))
        links = {link.source: link for link in setup.links if link.target == 0}
        sources = [Source(names[0], LinkName(f"{names[0]}->{names[0]}"), True)]
        sources += [
            Source(names[at], LinkName(f"{names[at]}->{names[0]}"), False, link.bps, link.rtt_ns)
            for at, link in links.items()
        ]
        kind = RouterPolicy(Threshold(threshold), LONGEST, 4, policy)
        self.router = Router(names[0], tuple(sources), kind)
        self.queues = {name: PrefillQueue(LONGEST, self.router.backlogs[0].order) for name in names}
        self._waiting: deque[TwinEvent] = deque()
        self._legs: dict[TransferId, _Leg] = {}
        self._tokens: dict[RequestId, int] = {}

    def begin(self) -> list[TwinEvent]:
        """Reports of all nodes, to be handed in first."""
        found: list[TwinEvent] = [DecodeSeen(DECODER, True, 0, LONGEST)]
        for one in self._setup.clusters:
            for nth in range(one.prefill):
                found.append(self.node(ClusterName(one.name), nth))
        return found

    def node(self, cluster: ClusterName, nth: int) -> TwinEvent:
        """A node is there."""
        name = NodeName(f"{cluster}-{nth}")
        return ForQueue(cluster, NodeSeen(name, True, Epoch(1), 1, LONGEST, self._curves[cluster]))

    def gone(self, cluster: ClusterName, nth: int) -> TwinEvent:
        """It takes no more work."""
        return ForQueue(cluster, NodeGone(NodeName(f"{cluster}-{nth}")))

    def handle(self, now_ns: int, event: TwinEvent) -> list[Effect]:
        """What was decided, and timers."""
        effects: list[Effect] = []
        self._waiting.append(event)
        while self._waiting:
            match self._waiting.popleft():
                case ForQueue(cluster, one):
                    for effect in self.queues[cluster].handle(now_ns, one):
                        self._queue_says(now_ns, cluster, effect, effects)
                    if isinstance(one, NodeSeen | NodeGone):
                        self._waiting.append(self._report(cluster))
                case Computed(cluster, job):
                    leg = self._legs.pop(job)
                    self._waiting.append(PrefillDone(leg.request, leg.attempt))
                    self._waiting.append(ForQueue(cluster, Finished(job, ok=True)))
                    self._decoded(leg.request, leg.attempt)
                case one:
                    for said in self.router.handle(now_ns, one):
                        self._router_says(said, effects)
        return effects

    def validate(self) -> None:
        """Raises InvariantError when a part contradicts itself."""
        self.router.validate()
        for queue in self.queues.values():
            queue.validate()

    def _report(self, cluster: ClusterName) -> SourceSeen:
        queue = self.queues[cluster]
        return SourceSeen(
            cluster, queue.ready, len(queue.waiting), len(queue.running), queue.max_tokens, curve=queue.curve
        )

    def _router_says(self, effect: Any, effects: list[Effect]) -> None:
        match effect:
            case AskCredit(request, attempt):
                kv_bytes = self._setup.kv_bytes(self._tokens[request])
                self._waiting.append(CreditGranted(request, attempt, DECODER, kv_bytes))
            case StartPrefill(request, attempt, cluster):
                job, tokens = TransferId(f"{request}.{attempt}"), self._tokens[request]
                self._legs[job] = _Leg(request, attempt, cluster, tokens)
                self._waiting.append(ForQueue(cluster, Submit(job, tokens, NEVER_LATE_NS)))
            case CancelPrefill(request, attempt):
                job = TransferId(f"{request}.{attempt}")
                leg = self._legs.pop(job, None)
                if leg is not None:
                    self._waiting.append(ForQueue(leg.cluster, Withdraw(job)))
            case Decided(request, tokens=tokens):
                self._tokens[request] = tokens
                effects.append(effect)
            case Ended(request):
                del self._tokens[request]
                effects.append(effect)
            case Refuse():
                effects.append(effect)
            case Arm() | Disarm():
                effects.append(effect)
            case StartDecode() | CancelDecode() | ReleaseCredit() | Relay():
                pass
            case _:
                raise AssertionError(f"{type(effect).__name__} is not wired")

    def _queue_says(self, now_ns: int, cluster: ClusterName, effect: Any, effects: list[Effect]) -> None:
        match effect:
            case Position(job, ahead):
                leg = self._legs[job]
                self._waiting.append(PrefillQueued(leg.request, leg.attempt, ahead))
            case Dispatch(job, node):
                leg = self._legs[job]
                self._waiting.append(PrefillBound(leg.request, leg.attempt, node))
                takes_ns = self._curves[cluster].at(leg.tokens)
                assert takes_ns is not None
                effects.append(Arm(("computed", job), now_ns + takes_ns, Computed(cluster, job)))
            case Reject(job, code, detail):
                leg = self._legs.pop(job)
                self._waiting.append(LegFailed(leg.request, leg.attempt, "prefill", code, detail))
            case Arm(key, at_ns, event):
                effects.append(Arm((cluster, key), at_ns, ForQueue(cluster, event)))
            case Disarm(key):
                effects.append(Disarm((cluster, key)))
            case _:
                raise AssertionError(f"{type(effect).__name__} is not wired")

    def _decoded(self, request: RequestId, attempt: int) -> None:
        self._waiting.append(FirstToken(request, attempt))
        self._waiting.append(Answered(request, attempt))
