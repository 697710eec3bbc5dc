"""One request's life at the gateway, as a state table: credit, prefill, hand-over, answer; and what follows a failure.

It knows which legs are open and what was tried. It does not know how a place is chosen (it asks `plan`), nor HTTP.
Resources are taken in one order - landing credit, then prefill blocks, then link share - so that no prefill holds
blocks while it waits for a decode that waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum

from prfaas.core.errors import InvariantError
from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId, transfer_of
from prfaas.core.machine import Arm, Disarm
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.copying import Copy
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    Relay,
    ReleaseCredit,
    RequestEffect,
    StartDecode,
    StartPrefill,
)
from prfaas.core.routing.events import (
    Answered,
    Arrived,
    Claimed,
    ClientGone,
    CreditGranted,
    DeadlinePassed,
    FirstToken,
    LegFailed,
    NodeLost,
    PrefillBound,
    PrefillDone,
    PrefillQueued,
    RequestEvent,
)
from prfaas.core.routing.ledger import Stage
from prfaas.core.table import Table

Effect = RequestEffect | Arm[RequestEvent] | Disarm


class Life(Enum):
    """Where a request is."""

    NEW = "not yet placed"
    CREDIT = "waits for landing credit at the decode node"
    PREFILL = "waits in the prefill cluster's queue"
    HANDOVER = "prefill runs, KV flows, decode waits for it"
    WHOLE = "the decode node computes all of it, no first token yet"
    ANSWERING = "the client sees tokens"
    ENDED = "over"


MOVES = 4
"""So often a request may be taken by another cluster's idle node."""
LIVE = (Life.CREDIT, Life.PREFILL, Life.HANDOVER, Life.WHOLE, Life.ANSWERING)
TRYING = (Life.CREDIT, Life.PREFILL, Life.HANDOVER, Life.WHOLE)
WAITING = (Life.CREDIT, Life.PREFILL)
PLACED = (Life.CREDIT, Life.WHOLE, Life.ENDED)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an attempt goes. `cluster` None: the decode node computes it whole. `copy`: what becomes of a longer prefix
    elsewhere, if there is one."""

    node: NodeName
    cluster: ClusterName | None
    link: LinkName
    remote: bool
    reason: str
    unknown: tuple[str, ...] = ()
    scores: tuple[float, ...] = ()
    cached: int = 0
    copy: Copy | None = None


@dataclass(frozen=True, slots=True)
class NoPlace:
    """No attempt can be made: how the client is answered."""

    status: int
    code: str
    message: str


@dataclass(slots=True)
class Tried:
    """What already failed this request."""

    clusters: set[ClusterName] = field(default_factory=set)
    nodes: set[NodeName] = field(default_factory=set)
    stays: str = ""
    why: str = "retry"
    """The reason of a place that is chosen because others failed."""
    last: str = ""
    """The latest failure, for whoever must be told that nothing is left to try."""


Plan = Callable[[int, RequestId, int, Cached, Tried], Place | NoPlace]


class RequestLife:
    """One request. `plan(now_ns, request, tokens, cached, tried)` chooses places; `home` and `threshold` are for the
    decision log.

    At most `attempts` places are tried; moving to another cluster's idle node, at most `MOVES` times, is no try.
    """

    TABLE = Table("request", Life, Life.NEW, [Life.ENDED])

    def __init__(self, request: RequestId, plan: Plan, home: ClusterName, threshold: int, attempts: int) -> None:
        self.request = request
        self.state: Life = Life.NEW
        self.attempt = 0
        self.place: Place | None = None
        self._plan = plan
        self._home = home
        self._threshold = threshold
        self._attempts = attempts
        self._moves = 0
        self.tokens = 0
        self.cached = NOTHING
        self._tried = Tried()
        self._prefill_open = False
        self._decode_open = False
        self._credit = False
        self._called_ns: int | None = None  # when the open call to the decode node began
        self._story: list[str] = []

    def handle(self, now_ns: int, event: RequestEvent) -> list[Effect]:
        """Effects of `event`. News of an earlier attempt, or after the end, changes nothing."""
        attempt = getattr(event, "attempt", self.attempt)
        if attempt != self.attempt or self.state is Life.ENDED:
            return []
        row = self.TABLE.row(self.state, type(event), tuple(self._story))
        self._story.append(f"{now_ns}:{self.state.name}x{type(event).__name__}")
        effects: list[Effect] = getattr(self, row.handler)(now_ns, event)
        if self.state not in row.to:
            raise InvariantError(f"request {self.request}: {self.state.name} is not in the row's {row.to}")
        return effects

    @property
    def source(self) -> ClusterName | None:
        """The cluster that has yet to prefill it, if one has."""
        if self.place is None or not (self._prefill_open or self.state is Life.CREDIT):
            return None
        return self.place.cluster

    @property
    def movable(self) -> bool:
        """Whether its prefill waits, and may be taken elsewhere."""
        return self.state in WAITING and self._moves < MOVES

    @property
    def stage(self) -> Stage | None:
        """Where its prefill waits or runs; None where it does neither."""
        cluster = self.source
        if cluster is None:
            return None
        return transfer_of(self.request, self.attempt), cluster, self._decode_open

    def given_to(self, node: NodeName, until_ns: int | None) -> bool:
        """Whether a call to `node` is open that began by `until_ns`; with None, whether the request is placed there."""
        if self.place is None or self.place.node != node or self.state not in LIVE:
            return False
        return until_ns is None or (self._called_ns is not None and self._called_ns <= until_ns)

    def validate(self) -> None:
        """Raises InvariantError when what is open does not fit the state."""
        wanted = {
            Life.NEW: (False, False),
            Life.CREDIT: (False, False),
            Life.PREFILL: (True, False),
            Life.WHOLE: (False, True),
            Life.ENDED: (False, False),
        }.get(self.state)
        if wanted is not None and wanted != (self._prefill_open, self._decode_open):
            raise InvariantError(
                f"request {self.request}: legs {self._prefill_open, self._decode_open}", (*self._story,)
            )
        if self.state in (Life.HANDOVER, Life.ANSWERING) and not self._decode_open:
            raise InvariantError(f"request {self.request}: {self.state.name} without a decode leg", (*self._story,))
        if self._credit and self.state not in (Life.CREDIT, Life.PREFILL, Life.HANDOVER):
            raise InvariantError(f"request {self.request}: credit held in {self.state.name}", (*self._story,))

    @TABLE.on([Life.NEW], Arrived, PLACED, "the router chooses a place, or says that there is none")
    def _arrived(self, now_ns: int, event: Arrived) -> list[Effect]:
        self.tokens, self.cached = event.tokens, event.cached
        self._tried.stays = event.stays
        arm: list[Effect] = [Arm(("deadline", self.request), event.deadline_ns, DeadlinePassed(self.request))]
        return arm + self._place(now_ns, after="")

    @TABLE.on([Life.CREDIT], CreditGranted, [Life.PREFILL], "landing room is sure: now a prefill may be asked for")
    def _granted(self, now_ns: int, event: CreditGranted) -> list[Effect]:
        place = self._placed()
        if place.cluster is None:
            raise InvariantError(f"request {self.request}: credit without a source", (*self._story,))
        self.state, self._prefill_open, self._called_ns = Life.PREFILL, True, None
        return [StartPrefill(self.request, self.attempt, place.cluster, place.link, event.receiver)]

    @TABLE.on([Life.PREFILL], PrefillQueued, [Life.PREFILL], "still waiting; the position is for the metrics")
    def _queued(self, now_ns: int, event: PrefillQueued) -> list[Effect]:
        return []

    @TABLE.on(WAITING, Claimed, [Life.CREDIT], "a node elsewhere idles and is sooner: withdrawn, and asked for there")
    def _claimed(self, now_ns: int, event: Claimed) -> list[Effect]:
        self._moves += 1
        place = replace(
            self._placed(),
            cluster=event.cluster,
            link=event.link,
            remote=event.remote,
            reason="claimed",
            unknown=(),
            scores=(),
            cached=self.cached.at(event.cluster, self.tokens),
            copy=event.copy,
        )
        return self._close("") + self._go(now_ns, place, after="")

    @TABLE.on([Life.PREFILL], PrefillBound, [Life.HANDOVER], "a node is chosen: the decode leg starts and dials it")
    def _bound(self, now_ns: int, event: PrefillBound) -> list[Effect]:
        self.state, self._decode_open, self._called_ns = Life.HANDOVER, True, now_ns
        return [StartDecode(self.request, self.attempt, self._placed().node, handover=True)]

    @TABLE.on([Life.HANDOVER], PrefillDone, [Life.HANDOVER], "the prefill side let go; decode has yet to answer")
    @TABLE.on([Life.ANSWERING], PrefillDone, [Life.ANSWERING], "the prefill side let go")
    def _prefill_done(self, now_ns: int, event: PrefillDone) -> list[Effect]:
        self._prefill_open = False
        return []

    @TABLE.on([Life.HANDOVER, Life.WHOLE], FirstToken, [Life.ANSWERING], "from here on the client sees this attempt")
    def _first_token(self, now_ns: int, event: FirstToken) -> list[Effect]:
        self.state, self._credit = Life.ANSWERING, False  # the transfer that used it is over
        return [Relay(self.request, self.attempt)]

    @TABLE.on([Life.ANSWERING], Answered, [Life.ENDED], "the answer is whole")
    def _answered(self, now_ns: int, event: Answered) -> list[Effect]:
        # The KV was applied long ago: a prefill leg that is still open only waits for its own last word.
        return [*self._close("decode"), *self._end("ok")]

    @TABLE.on(TRYING, LegFailed, PLACED, "the other leg is cancelled at once; elsewhere, or one clear error")
    def _failed(self, now_ns: int, event: LegFailed) -> list[Effect]:
        effects = self._close(event.leg)
        if event.fatal:
            return [*effects, Refuse(self.request, event.status, event.code, event.detail), *self._end("refused")]
        place = self._placed()
        self._tried.last = f"{event.leg}: {event.code}: {event.detail}"
        if event.code == "deadline_unmeetable" and not place.remote:
            return [*effects, Refuse(self.request, 503, event.code, event.detail), *self._end("refused")]
        if event.leg == "credit" and event.code == "landing_buffer_exceeded":
            self._tried.stays = "no_landing_room"
        elif place.cluster is not None and (event.leg == "prefill" or event.code.startswith("kv_")):
            self._tried.clusters.add(place.cluster)
            if event.code == "layout_mismatch":
                self._tried.why = event.code
        else:
            self._tried.nodes.add(place.node)
        return effects + self._again(now_ns, event.leg, event.code, event.detail)

    @TABLE.on(TRYING, NodeLost, PLACED, "all that is open is closed; elsewhere, or one clear error")
    def _lost(self, now_ns: int, event: NodeLost) -> list[Effect]:
        self._tried.nodes.add(self._placed().node)
        self._tried.last = f"decode: node_lost: {event.detail}"
        return self._close("") + self._again(now_ns, "decode", "node_lost", event.detail)

    @TABLE.on([Life.ANSWERING], NodeLost, [Life.ENDED], "the stream ends with an error; both legs stop")
    def _lost_answering(self, now_ns: int, event: NodeLost) -> list[Effect]:
        return [*self._close(""), *self._end("broken")]

    @TABLE.on(
        [Life.ANSWERING], LegFailed, [Life.ANSWERING, Life.ENDED], "decode: broken; prefill: KV is applied, no harm"
    )
    def _failed_late(self, now_ns: int, event: LegFailed) -> list[Effect]:
        if event.leg == "prefill":
            self._prefill_open = False
            return []
        return [*self._close(event.leg), *self._end("broken")]

    @TABLE.on(LIVE, ClientGone, [Life.ENDED], "both legs stop, credit goes back")
    def _gone(self, now_ns: int, event: ClientGone) -> list[Effect]:
        return [*self._close(""), *self._end("gone")]

    @TABLE.on(TRYING, DeadlinePassed, [Life.ENDED], "504, both legs stop, credit goes back")
    def _late(self, now_ns: int, event: DeadlinePassed) -> list[Effect]:
        message = f"the deadline passed; by then: {self.state.value}"
        return [*self._close(""), Refuse(self.request, 504, "deadline_exceeded", message), *self._end("refused")]

    @TABLE.on([Life.ANSWERING], DeadlinePassed, [Life.ENDED], "the stream ends with an error; both legs stop")
    def _late_answering(self, now_ns: int, event: DeadlinePassed) -> list[Effect]:
        return [*self._close(""), *self._end("broken")]

    def _again(self, now_ns: int, leg: str, code: str, detail: str) -> list[Effect]:
        tries = self.attempt - self._moves
        if tries >= self._attempts:
            message = f"{tries} attempts failed; the last one: {leg}: {detail}"
            return [Refuse(self.request, 502, code, message), *self._end("refused")]
        return self._place(now_ns, after=f"{leg}:{code}")

    def _place(self, now_ns: int, after: str) -> list[Effect]:
        place = self._plan(now_ns, self.request, self.tokens, self.cached, self._tried)
        if isinstance(place, NoPlace):
            return [Refuse(self.request, place.status, place.code, place.message), *self._end("refused")]
        return self._go(now_ns, place, after)

    def _go(self, now_ns: int, place: Place, after: str) -> list[Effect]:
        """The next attempt."""
        self.place, self._called_ns = place, now_ns
        self.attempt += 1
        decided = Decided(
            self.request,
            self.attempt,
            now_ns,
            "remote" if place.remote else "local",
            place.cluster or self._home,
            place.node,
            place.reason,
            self.tokens,
            self._threshold,
            after,
            place.unknown,
            place.scores,
            place.cached,
            place.copy,
        )
        if place.cluster is None:
            self.state, self._decode_open = Life.WHOLE, True
            return [decided, StartDecode(self.request, self.attempt, place.node, handover=False)]
        self.state, self._credit = Life.CREDIT, True
        return [decided, AskCredit(self.request, self.attempt, place.node)]

    def _close(self, failed_leg: str) -> list[Effect]:
        """End whatever is open but the leg that failed by itself."""
        effects: list[Effect] = []
        if self._prefill_open and failed_leg != "prefill":
            effects.append(CancelPrefill(self.request, self.attempt))
        if self._decode_open and failed_leg != "decode":
            effects.append(CancelDecode(self.request, self.attempt))
        if self._credit:
            effects.append(ReleaseCredit(self.request, self.attempt, self._placed().node))
        self._prefill_open = self._decode_open = self._credit = False
        return effects

    def _end(self, outcome: str) -> list[Effect]:
        self.state = Life.ENDED
        route = "none" if self.place is None else "remote" if self.place.remote else "local"
        return [Disarm(("deadline", self.request)), Ended(self.request, route, outcome)]

    def _placed(self) -> Place:
        if self.place is None:
            raise InvariantError(f"request {self.request} has no place", (*self._story,))
        return self.place
