"""The prefill queue of one cluster: who waits, which node takes whom.

It knows jobs, nodes and free slots; it does not know tickets, HTTP or who asked. Queues belong to the cluster's
head: gateways of other clusters ask it, and may withdraw until a job is dispatched.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass

from prfaas.core.errors import InvariantError
from prfaas.core.ids import Epoch, NodeName, TransferId
from prfaas.core.machine import Arm, Disarm
from prfaas.core.routing.curve import Curve, mean
from prfaas.core.routing.order import key_ns
from prfaas.core.routing.pace import Pace
from prfaas.core.routing.share import ShareClock


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Event: a prefill node reported (or could not be asked: `ready` False). `slots`: prefills it takes at once;
    `curve`: how long prompts take it, if it says."""

    node: NodeName
    ready: bool
    epoch: Epoch
    slots: int
    max_tokens: int
    curve: Curve | None = None


@dataclass(frozen=True, slots=True)
class NodeGone:
    """Event: the node does not belong to the cluster any more. What runs there tells its own end."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Submit:
    """Event: a prefill of `tokens` tokens is wanted before `deadline_ns`. `prefer`: nodes that have much of
    it cached."""

    job: TransferId
    tokens: int
    deadline_ns: int
    prefer: tuple[NodeName, ...] = ()


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Event: nobody wants the job any more."""

    job: TransferId


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the node has let go of the job, well (`ok`: computed and handed over) or not.

    `node_ns`: of its time, what the prefill took, as the node says; None when it does not. `answered_ns`: after which
    time the node had computed. `cached`: tokens that it had kept, and did not compute.
    """

    job: TransferId
    ok: bool = False
    node_ns: int | None = None
    answered_ns: int | None = None
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Expired:
    """Event: the job's deadline passed while it waited."""

    job: TransferId


@dataclass(frozen=True, slots=True)
class Position:
    """Effect: tell who asked that `ahead` jobs are before it."""

    job: TransferId
    ahead: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Effect: start the job on `node`, incarnation `epoch`."""

    job: TransferId
    node: NodeName
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class Reject:
    """Effect: tell who asked that the job will not run, and why."""

    job: TransferId
    code: str
    detail: str


QueueEvent = NodeSeen | NodeGone | Submit | Withdraw | Finished | Expired
QueueEffect = Position | Dispatch | Reject
Effect = QueueEffect | Arm[QueueEvent] | Disarm
SAMPLES, LEAST_SAMPLES = 32, 4


class Speed:
    """The best that the nodes have shown of late: what a deadline is held against.

    The best, not the mean: who is refused early must have had no chance, as far as we have seen. A prompt is held
    against those that were at least half as long: shorter ones are mostly fixed costs, which do not grow with tokens.
    """

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=SAMPLES)

    def finished(self, tokens: int, took_ns: int) -> None:
        """A job of `tokens` tokens was with its node for `took_ns`."""
        self._seen.append((tokens, took_ns))

    def least_ns(self, tokens: int) -> int:
        """The least that a prompt of `tokens` tokens takes; 0 while too little was seen."""
        alike = [took_ns * min(tokens, seen) // seen for seen, took_ns in self._seen if 2 * seen >= tokens]
        return min(alike) if len(alike) >= LEAST_SAMPLES else 0


@dataclass(frozen=True, slots=True)
class Started:
    """A prefill that a node has since `at_ns`; `share_ns` was its clock then."""

    tokens: int
    at_ns: int
    share_ns: int


class PrefillQueue:
    """Ordered by `order.key_ns`, over the ready nodes; the node with the most free slots takes the next, then by name.
    One that a job prefers counts as having a slot more.

    `order`: see `Policy.order`; 0, or times that are not known, make it first come, first served.
    """

    def __init__(self, capacity: int, order: float = 0.0) -> None:
        self.capacity = capacity
        self.order = order
        self.waiting: dict[TransferId, Submit] = {}
        self.running: dict[TransferId, NodeName] = {}
        self.started: dict[TransferId, Started] = {}
        """Of those that run."""
        self.came_ns: dict[TransferId, int] = {}
        """When each of those that wait was submitted."""
        self._line: list[tuple[int, int, TransferId]] = []
        self._keys: dict[TransferId, tuple[int, int, TransferId]] = {}
        self._came = 0
        self._clocks: dict[NodeName, ShareClock] = {}
        self._speed = Speed()
        self._pace = Pace()
        self.nodes: dict[NodeName, NodeSeen] = {}

    @property
    def ready(self) -> int:
        """Nodes that can take work."""
        return sum(node.ready for node in self.nodes.values())

    @property
    def slots(self) -> int:
        """Prefills that the ready nodes take at once."""
        return sum(node.slots for node in self.nodes.values() if node.ready)

    @property
    def line(self) -> list[Submit]:
        """Those that wait, next first."""
        return [self.waiting[job] for _, _, job in self._line]

    @property
    def curve(self) -> Curve | None:
        """How long a node takes: as the ready ones say, if all do, in the mean; else learned from what they finished,
        each prefill's part of its node's time. None while too little is known."""
        told = [node.curve for node in self.nodes.values() if node.ready]
        known = [curve for curve in told if curve is not None]
        return mean(known) if known and len(known) == len(told) else self._pace.curve

    def on(self, node: NodeName) -> int:
        """Jobs that run on `node`."""
        clock = self._clocks.get(node)
        return clock.jobs if clock is not None else 0

    @property
    def max_tokens(self) -> int:
        """The longest prompt that some ready node takes; 0 when none is ready."""
        return max((node.max_tokens for node in self.nodes.values() if node.ready), default=0)

    def handle(self, now_ns: int, event: QueueEvent) -> list[Effect]:
        """Effects of `event`. News of a job that is gone changes nothing."""
        match event:
            case NodeSeen():
                self.nodes[event.node] = event
                return self._reject_unservable() + self._dispatch(now_ns)
            case NodeGone():
                self.nodes.pop(event.node, None)
                return self._reject_unservable()
            case Submit():
                return self._submit(now_ns, event)
            case Withdraw() | Expired():
                if event.job not in self.waiting:
                    return []
                self._remove(event.job)
                effects: list[Effect] = [Disarm(("job", event.job))]
                if isinstance(event, Expired):
                    effects.append(Reject(event.job, "deadline_exceeded", "the deadline passed in the prefill queue"))
                return effects
            case Finished():
                self._finished(now_ns, event)
                return self._dispatch(now_ns)

    def validate(self) -> None:
        """Raises InvariantError when a job is in two places, a node is overfull, or work waits beside a free slot."""
        if self.waiting.keys() & self.running.keys():
            raise InvariantError(f"waiting and running: {self.waiting.keys() & self.running.keys()}")
        if len(self.waiting) > self.capacity:
            raise InvariantError(f"{len(self.waiting)} wait in a queue of {self.capacity}")
        if self._line != sorted(self._keys.values()) or not (
            self._keys.keys() == self.came_ns.keys() == self.waiting.keys()
        ):
            raise InvariantError(f"in line {self._line}, waiting {sorted(self.waiting)}")
        on: dict[NodeName, int] = {}
        for name in self.running.values():
            on[name] = on.get(name, 0) + 1
        if self.started.keys() != self.running.keys() or on != {
            name: clock.jobs for name, clock in self._clocks.items()
        }:
            raise InvariantError(f"nodes have {on}, their clocks say otherwise")
        for job in self.waiting.values():
            if self._node_for(job) is not None:
                raise InvariantError(f"{job.job} waits beside a free slot")

    def _submit(self, now_ns: int, event: Submit) -> list[Effect]:
        if event.job in self.waiting or event.job in self.running:
            return [Reject(event.job, "duplicate", "this transfer is queued or running already")]
        if event.deadline_ns <= now_ns:
            return [Reject(event.job, "deadline_exceeded", "the deadline has passed")]
        if (refusal := self._unservable(event)) is not None:
            return [refusal]
        if (late := self._unmeetable(now_ns, event)) is not None:
            return [late]
        if len(self.waiting) >= self.capacity:
            return [Reject(event.job, "queue_full", f"{self.capacity} prefills are waiting already")]
        ahead = self._enter(now_ns, event)
        started = self._dispatch(now_ns)
        if event.job in self.running:
            return started
        return [Position(event.job, ahead), Arm(("job", event.job), event.deadline_ns, Expired(event.job))]

    def _enter(self, now_ns: int, job: Submit) -> int:
        """It waits from now on; how many are before it."""
        key = (self._key_ns(now_ns, job), self._came, job.job)
        self._came += 1
        insort(self._line, key)
        self.waiting[job.job], self.came_ns[job.job], self._keys[job.job] = job, now_ns, key
        return bisect_left(self._line, key)

    def _remove(self, job: TransferId) -> None:
        """It does not wait any more."""
        del self.waiting[job], self.came_ns[job]
        del self._line[bisect_left(self._line, self._keys.pop(job))]

    def _key_ns(self, now_ns: int, job: Submit) -> int:
        curve = self.curve if self.order else None
        return key_ns(self.order, now_ns, 0 if curve is None else curve.at(job.tokens) or 0)

    def _finished(self, now_ns: int, event: Finished) -> None:
        node = self.running.pop(event.job, None)
        if node is None:
            return
        job, clock = self.started.pop(event.job), self._clocks[node]
        share_ns = clock.end(now_ns) - job.share_ns
        if not clock.jobs:
            del self._clocks[node]
        if not event.ok or not job.tokens:
            return
        took_ns = now_ns - job.at_ns
        self._speed.finished(job.tokens, took_ns)
        if event.answered_ns is not None and took_ns:
            share_ns = share_ns * min(event.answered_ns, took_ns) // took_ns
        self._pace.finished(job.tokens - event.cached, share_ns if event.node_ns is None else event.node_ns)

    def _unservable(self, job: Submit) -> Reject | None:
        if not self.ready:
            return Reject(job.job, "no_node", "no prefill node is ready")
        if job.tokens > self.max_tokens:
            return Reject(
                job.job, "too_long", f"{job.tokens} tokens; the longest that a node takes is {self.max_tokens}"
            )
        return None

    def _unmeetable(self, now_ns: int, job: Submit) -> Reject | None:
        """Work that cannot meet its deadline, even if all goes as well as it ever did: refused before it costs
        anything."""
        before = self._line[: bisect_right(self._line, self._key_ns(now_ns, job), key=lambda entry: entry[0])]
        lengths = [self.waiting[entry[2]].tokens for entry in before]
        ahead = sum(lengths)
        before_ns = sum(self._speed.least_ns(tokens) for tokens in lengths)
        least_ns = before_ns // max(1, self.slots) + self._speed.least_ns(job.tokens)
        left_ns = job.deadline_ns - now_ns
        if least_ns <= left_ns:
            return None
        detail = f"{job.tokens} tokens, with {ahead} waiting before them, take {least_ns / 1e9:.1f} s at the least"
        return Reject(job.job, "deadline_unmeetable", f"{detail}; the deadline is in {left_ns / 1e9:.1f} s")

    def _reject_unservable(self) -> list[Effect]:
        effects: list[Effect] = []
        for job in self.line:
            if (refusal := self._unservable(job)) is not None:
                self._remove(job.job)
                effects += [Disarm(("job", job.job)), refusal]
        return effects

    def _dispatch(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        if not any(node.ready and node.slots > self.on(node.node) for node in self.nodes.values()):
            return effects
        for job in self.line:
            node = self._node_for(job)
            if node is None:
                continue
            self._remove(job.job)
            clock = self._clocks.setdefault(node.node, ShareClock())
            self.running[job.job] = node.node
            self.started[job.job] = Started(job.tokens, now_ns, clock.begin(now_ns))
            effects += [Disarm(("job", job.job)), Dispatch(job.job, node.node, node.epoch)]
        return effects

    def _node_for(self, job: Submit) -> NodeSeen | None:
        free = [
            node
            for node in self.nodes.values()
            if node.ready and node.slots > self.on(node.node) and job.tokens <= node.max_tokens
        ]
        return min(free, key=lambda n: self._choice(job, n)) if free else None

    def _choice(self, job: Submit, node: NodeSeen) -> tuple[int, bool, NodeName]:
        preferred = node.node in job.prefer
        return self.on(node.node) - node.slots - preferred, not preferred, node.node
