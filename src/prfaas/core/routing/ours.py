"""The default policy: a home by threshold, lent nodes both ways, work that moves until it starts, rescue.

It knows backlogs, links and a threshold from the planner's model; it does not know who drives it. The threshold is what
no router beats on steady throughput; everything else here is about waiting. A job goes where it belongs, unless the
other side has a node to spare and would be done sooner; who waits may be taken by an idle node elsewhere, until prefill
starts; KV that is stuck on a link may be made again at home.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.greedy import ready_ns
from prfaas.core.routing.policy import Answer, Job
from prfaas.core.routing.pull import Pull
from prfaas.core.routing.reference import able


class Ours(Pull):
    """`reserve`: nodes that a PrfaaS cluster keeps for long jobs when short ones would come; `keep`: nodes that a home
    keeps for short jobs when long ones would stay."""

    name = "ours"
    own_order = 0.5

    def __init__(self, threshold: int, order: float = 0.0, reserve: int = 0, keep: int = 0) -> None:
        super().__init__(threshold, order, reserve)
        self.keep = keep

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        at_home = job.options[0]
        found = able(job, clusters)
        away = [at for at in found if at != at_home]
        long = job.uncached[at_home] > self.threshold
        if not away:
            return Answer(at_home, "unreachable" if long else "short")
        if at_home not in found:
            best = min(away, key=lambda at: ready_ns(now_ns, job, clusters[at]))
            return Answer(best, "no_home_node")
        home = clusters[at_home]
        if long:
            return self._long(now_ns, job, home, away, clusters)
        spare = [at for at in away if clusters[at].idle - len(clusters[at]) > self.reserve]
        if not spare:
            return Answer(at_home, "short")
        here = ready_ns(now_ns, job, home)
        there, best = min([(ready_ns(now_ns, job, clusters[at]), at) for at in spare])
        if there < here:
            return Answer(best, "spare", (here / 1e9, there / 1e9))
        return Answer(at_home, "short", (here / 1e9, there / 1e9))

    def _long(self, now_ns: int, job: Job, home: Backlog, away: Sequence[int], clusters: Sequence[Backlog]) -> Answer:
        free = home.idle - len(home) > self.keep
        if len(away) == 1 and not free:
            return Answer(away[0], "long")
        there, best = min([(ready_ns(now_ns, job, clusters[at]), at) for at in away])
        if not free:
            return Answer(best, "long")
        here = ready_ns(now_ns, job, home)
        if here < there:
            return Answer(home.at, "sooner_here", (here / 1e9, there / 1e9))
        return Answer(best, "long", (here / 1e9, there / 1e9))
