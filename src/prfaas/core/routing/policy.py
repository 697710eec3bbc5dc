"""What a routing policy is asked and what it answers, for drivers of every kind.

It knows jobs, answers and the calls; it does not know any policy, nor who drives it. Clusters are numbered by their
place in the driver's list; a job's first option is the cluster that it came to, which will decode it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from prfaas.core.routing.backlog import Backlog

IMPOSSIBLE = -1
"""Prefill time of a job on a cluster that cannot take it."""


class Job:
    """A prompt to be prefilled. Lists have one value a cluster.

    `tokens`: the whole prompt. `uncached`: tokens that the cluster would compute. `prefill_ns`: how long that takes on
    one of its nodes, `IMPOSSIBLE` where it cannot run. `kv_bytes`: what would cross the link to the home; 0 at home.
    `options`: clusters where it can run, its home first. `where`: whose queue holds it now; `epoch`: how many
    times it changed hands, which fences late claims. `lenders`: clusters whose longer prefix can be copied to the home,
    None: any; from others it cannot, and each one's cache counts for itself.
    """

    __slots__ = (
        "arrival_ns",
        "epoch",
        "key_ns",
        "kv_bytes",
        "lenders",
        "number",
        "options",
        "prefill_ns",
        "seq",
        "tokens",
        "uncached",
        "where",
    )

    def __init__(
        self,
        number: int,
        arrival_ns: int,
        tokens: int,
        options: Sequence[int],
        uncached: list[int],
        prefill_ns: list[int],
        kv_bytes: list[int],
    ) -> None:
        self.number = number
        self.arrival_ns = arrival_ns
        self.tokens = tokens
        self.options = options
        self.uncached = uncached
        self.prefill_ns = prefill_ns
        self.kv_bytes = kv_bytes
        self.lenders: tuple[int, ...] | None = None
        self.where = -1
        self.epoch = 0
        self.key_ns = 0
        self.seq = 0

    @property
    def unsent_bytes(self) -> int:
        """What of its KV has yet to leave, when its prefill has ended and it is stuck. Drivers know."""
        return self.kv_bytes[self.where] if self.where >= 0 else 0

    @property
    def home(self) -> int:
        """The cluster that it came to."""
        return self.options[0]


class Answer:
    """Where a job goes, why in one word, and what each option was worth: `scores`, smaller is better, in the order of
    the options that were weighed; empty where nothing was weighed. `copy_from`: the cluster whose longer cached prefix
    should be copied there first, or -1."""

    __slots__ = ("cluster", "copy_from", "reason", "scores")

    def __init__(self, cluster: int, reason: str, scores: tuple[float, ...] = (), copy_from: int = -1) -> None:
        self.cluster = cluster
        self.reason = reason
        self.scores = scores
        self.copy_from = copy_from

    def __repr__(self) -> str:
        return f"Answer({self.cluster}, {self.reason!r}, {self.scores}, {self.copy_from})"


class Policy(Protocol):
    """Pure but for slow state of its own, which only these calls change. Any `now_ns` is at least the last one."""

    name: str
    moves: bool
    """Whether `claim` and `rescue` ever answer anything."""
    order: float
    """`g` in the queue's key, arrival + g * prefill time: 0 is first come, first served."""

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """Where `job` goes. At least one of its options has a node."""

    def claim(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """The job that waits elsewhere and that an idle node of `taker`, whose own queue is empty, should take."""

    def rescue(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """The job whose KV is stuck on a link and that an idle node of its home `taker` should prefill again."""
