"""Policies to compare with: `local`, `remote`, `balanced` and the published one, `paper`.

They know jobs and backlogs; they do not know each other. None of them moves a job that was placed.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.copying import SECOND_NS, scarce
from prfaas.core.routing.policy import IMPOSSIBLE, Answer, Job


class Settled:
    """A policy that never moves what it placed."""

    name = "settled"
    moves = False

    def __init__(self, order: float = 0.0) -> None:
        self.order = order

    def claim(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """Nothing."""
        return None

    def rescue(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """Nothing."""
        return None


def able(job: Job, clusters: Sequence[Backlog]) -> list[int]:
    """The options that have a node for `job`, home first; where none has, all that could have one again."""
    could = [at for at in job.options if job.prefill_ns[at] != IMPOSSIBLE]
    return [at for at in could if clusters[at].nodes] or could


class Local(Settled):
    """No offload: home, unless it cannot."""

    name = "local"

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        home = job.options[0]
        found = able(job, clusters)
        return Answer(home, "local") if home in found else Answer(least_busy(now_ns, found, clusters), "no_home_node")


class Remote(Settled):
    """All away: the PrfaaS cluster with the least work a node; home only where none can."""

    name = "remote"

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        away = [at for at in able(job, clusters) if at != job.options[0]]
        return Answer(least_busy(now_ns, away, clusters), "remote") if away else Answer(job.options[0], "unreachable")


class Balanced(Settled):
    """Length-blind: the cluster with the least work a node, whatever the prompt's length."""

    name = "balanced"

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        found = able(job, clusters)
        return Answer(least_busy(now_ns, found, clusters), "least_loaded")


def least_busy(now_ns: int, among: Sequence[int], clusters: Sequence[Backlog]) -> int:
    """The cluster with the least work a node; of equals that with most idle nodes, then the first."""
    return min(among, key=lambda at: (clusters[at].per_node_ns(now_ns), -clusters[at].idle, at))


DEEP_NS = 10 * SECOND_NS
"""So is a queue with more work than this a node, if it is twice as deep as at home."""
STEP = 1.1
MOST = 8.0


class Paper(Settled):
    """The published policy: a threshold on uncached tokens; where bandwidth is scarce each cluster's cache is judged
    alone, where it is plentiful the longer prefix counts for both and is copied. `feedback`: near saturation of egress
    or of the remote queue the threshold is raised, step by step, unless home is full too, and lowered again afterwards
    (section 6 of the paper, which gives no figures: these are ours)."""

    name = "paper"

    def __init__(self, threshold: int, order: float = 0.0, feedback: bool = True) -> None:
        super().__init__(order)
        self.threshold = threshold
        self.feedback = feedback
        self.factor = 1.0
        self._looked_ns = -SECOND_NS

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        home, uncached = job.options[0], job.uncached
        if self.feedback and now_ns - self._looked_ns >= SECOND_NS:
            self._adapt(now_ns, home, job.options, clusters)
        threshold = self.threshold * self.factor
        found = able(job, clusters)
        away = [at for at in found if at != home]
        if not away:
            return Answer(home, "unreachable" if uncached[home] > threshold else "short")
        if home not in found:
            return Answer(least_busy(now_ns, away, clusters), "no_home_node")
        plentiful = [at for at in away if not _scarce(clusters[at], home)]
        if not plentiful:
            if uncached[home] <= threshold:
                return Answer(home, "short")
            return Answer(least_busy(now_ns, away, clusters), "long")
        lenders = plentiful if job.lenders is None else [at for at in plentiful if at in job.lenders]
        best = min([home, *lenders], key=lambda at: (uncached[at], at != home))
        if uncached[best] <= threshold:
            return Answer(home, "short", copy_from=best if uncached[best] < uncached[home] else -1)
        to = least_busy(now_ns, plentiful, clusters)
        return Answer(to, "long", copy_from=best if uncached[best] < uncached[to] else -1)

    def _adapt(self, now_ns: int, home: int, options: Sequence[int], clusters: Sequence[Backlog]) -> None:
        self._looked_ns = now_ns
        here = clusters[home].per_node_ns(now_ns)
        full = False
        for at in options[1:]:
            deep = clusters[at].per_node_ns(now_ns)
            full = full or _scarce(clusters[at], home) or (deep > DEEP_NS and deep > 2 * here)
        full = full and here <= DEEP_NS
        self.factor = min(MOST, self.factor * STEP) if full else max(1.0, self.factor / STEP)


def _scarce(cluster: Backlog, home: int) -> bool:
    return scarce(cluster.links[home])
