"""The prefill queue of one cluster: who waits, which node takes whom.

It knows jobs, nodes and free slots; it does not know tickets, HTTP or who asked. Queues belong to the cluster's
head: gateways of other clusters ask it, and may withdraw until a job is dispatched.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from prfaas.core.errors import InvariantError
from prfaas.core.ids import Epoch, NodeName, TransferId
from prfaas.core.machine import Arm, Disarm


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """Event: a prefill node reported (or could not be asked: `ready` False). `slots`: prefills it takes at once."""

    node: NodeName
    ready: bool
    epoch: Epoch
    slots: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class NodeGone:
    """Event: the node does not belong to the cluster any more. What runs there tells its own end."""

    node: NodeName


@dataclass(frozen=True, slots=True)
class Submit:
    """Event: a prefill of `tokens` tokens is wanted before `deadline_ns`."""

    job: TransferId
    tokens: int
    deadline_ns: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Event: nobody wants the job any more."""

    job: TransferId


@dataclass(frozen=True, slots=True)
class Finished:
    """Event: the node has let go of the job, well (`ok`: computed and handed over) or not."""

    job: TransferId
    ok: bool = False


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


class PrefillQueue:
    """First come, first served over the ready nodes; the node with the most free slots takes the next, then by name."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.waiting: dict[TransferId, Submit] = {}
        self.running: dict[TransferId, NodeName] = {}
        self._started: dict[TransferId, tuple[int, int]] = {}
        self._speed = Speed()
        self.nodes: dict[NodeName, NodeSeen] = {}

    @property
    def ready(self) -> int:
        """Nodes that can take work."""
        return sum(node.ready for node in self.nodes.values())

    def on(self, node: NodeName) -> int:
        """Jobs that run on `node`."""
        return sum(name == node for name in self.running.values())

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
                if self.waiting.pop(event.job, None) is None:
                    return []
                effects: list[Effect] = [Disarm(("job", event.job))]
                if isinstance(event, Expired):
                    effects.append(Reject(event.job, "deadline_exceeded", "the deadline passed in the prefill queue"))
                return effects
            case Finished():
                self.running.pop(event.job, None)
                at_ns, tokens = self._started.pop(event.job, (now_ns, 0))
                if event.ok and tokens:
                    self._speed.finished(tokens, now_ns - at_ns)
                return self._dispatch(now_ns)

    def validate(self) -> None:
        """Raises InvariantError when a job is in two places, a node is overfull, or work waits beside a free slot."""
        if self.waiting.keys() & self.running.keys():
            raise InvariantError(f"waiting and running: {self.waiting.keys() & self.running.keys()}")
        if len(self.waiting) > self.capacity:
            raise InvariantError(f"{len(self.waiting)} wait in a queue of {self.capacity}")
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
        self.waiting[event.job] = event
        ahead = len(self.waiting) - 1
        started = self._dispatch(now_ns)
        if event.job in self.running:
            return started
        return [Position(event.job, ahead), Arm(("job", event.job), event.deadline_ns, Expired(event.job))]

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
        slots = sum(node.slots for node in self.nodes.values() if node.ready)
        ahead = sum(waiting.tokens for waiting in self.waiting.values())
        before_ns = sum(self._speed.least_ns(waiting.tokens) for waiting in self.waiting.values())
        least_ns = before_ns // max(1, slots) + self._speed.least_ns(job.tokens)
        left_ns = job.deadline_ns - now_ns
        if least_ns <= left_ns:
            return None
        detail = f"{job.tokens} tokens, with {ahead} waiting before them, take {least_ns / 1e9:.1f} s at the least"
        return Reject(job.job, "deadline_unmeetable", f"{detail}; the deadline is in {left_ns / 1e9:.1f} s")

    def _reject_unservable(self) -> list[Effect]:
        effects: list[Effect] = []
        for job in list(self.waiting.values()):
            if (refusal := self._unservable(job)) is not None:
                del self.waiting[job.job]
                effects += [Disarm(("job", job.job)), refusal]
        return effects

    def _dispatch(self, now_ns: int) -> list[Effect]:
        effects: list[Effect] = []
        for job in list(self.waiting.values()):
            node = self._node_for(job)
            if node is None:
                continue
            del self.waiting[job.job]
            self.running[job.job] = node.node
            self._started[job.job] = (now_ns, job.tokens)
            effects += [Disarm(("job", job.job)), Dispatch(job.job, node.node, node.epoch)]
        return effects

    def _node_for(self, job: Submit) -> NodeSeen | None:
        load: dict[NodeName, int] = {}
        for name in self.running.values():
            load[name] = load.get(name, 0) + 1
        free = [
            node
            for node in self.nodes.values()
            if node.ready and node.slots > load.get(node.node, 0) and job.tokens <= node.max_tokens
        ]
        return min(free, key=lambda n: (load.get(n.node, 0) - n.slots, n.node)) if free else None
