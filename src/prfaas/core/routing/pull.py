"""`pull`: a home by threshold, and work that moves until it starts. What `ours` is made from.

It knows backlogs, links and a threshold from the planner's model; it does not know who drives it. A job is placed where
it seems best now; since nobody knows what comes next, an idle node may take it from there as long as it waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.greedy import ready_ns
from prfaas.core.routing.policy import IMPOSSIBLE, Answer, Job
from prfaas.core.routing.reference import able

RESCUE_NS = 10**9
RESCUE_TIMES = 2
"""KV is made again when what is stuck would take a second more than twice the time to make it: half of what was sent is
wasted, and the node cannot be lent to others meanwhile."""


class Pull:
    """Home by threshold, reservation, stealing both ways, rescue."""

    name = "pull"
    moves = True

    def __init__(self, threshold: int, order: float = 0.0, reserve: int = 1) -> None:
        self.threshold = threshold
        self.order = order
        self.reserve = reserve

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        home = job.options[0]
        found = able(job, clusters)
        away = [at for at in found if at != home]
        if not away:
            return Answer(home, "unreachable" if job.uncached[home] > self.threshold else "short")
        if job.uncached[home] > self.threshold or home not in found:
            if len(away) == 1:
                return Answer(away[0], "long")
            best = min(away, key=lambda at: ready_ns(now_ns, job, clusters[at]))
            return Answer(best, "long")
        here = -1
        for at in away:
            cluster = clusters[at]
            if cluster.idle - len(cluster) > self.reserve:
                if here < 0:
                    here = ready_ns(now_ns, job, clusters[home])
                there = ready_ns(now_ns, job, cluster)
                if there < here:
                    return Answer(at, "spare", (here / 1e9, there / 1e9))
        return Answer(home, "short")

    def claim(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """See `Policy`: the job that gains most from moving, if any does."""
        best: Job | None = None
        most = 0
        mine = clusters[taker]
        for other in clusters:
            if other is mine or not len(other):
                continue
            starts = other.starts(now_ns)
            crossing: dict[int, int] = {}
            at = other.at
            for job, start in zip(other.waiting, starts, strict=False):
                x = job.prefill_ns[taker]
                there = start - now_ns + job.prefill_ns[at]
                link = other.links.get(job.options[0])
                if link is not None:
                    through = crossing.get(job.options[0], link.unsent_bytes) + job.kv_bytes[at]
                    crossing[job.options[0]] = through
                    there = max(there, link.drain_ns(now_ns, through))
                if x == IMPOSSIBLE or taker not in job.options:
                    continue
                here = x
                link = mine.links.get(job.options[0])
                if link is not None:
                    here = max(x, link.drain_ns(now_ns, link.unsent_bytes + job.kv_bytes[taker])) + link.rtt_ns
                if there - here > most:
                    best, most = job, there - here
        return best

    def rescue(self, now_ns: int, taker: int, clusters: Sequence[Backlog]) -> Job | None:
        """See `Policy`: the job for which prefilling again saves most for what it costs."""
        best: Job | None = None
        most = 0.0
        for cluster in clusters:
            stuck = cluster.stuck.get(taker)
            if not stuck:
                continue
            link = cluster.links[taker]
            sharing = len(stuck) + len(cluster.ends)
            for job in stuck.values():
                x = job.prefill_ns[taker]
                if x == IMPOSSIBLE:
                    continue
                drain = link.drain_ns(now_ns, min(link.unsent_bytes, sharing * job.unsent_bytes))
                if drain - RESCUE_TIMES * x > RESCUE_NS and (drain - x) / x > most:
                    best, most = job, (drain - x) / x
        return best
