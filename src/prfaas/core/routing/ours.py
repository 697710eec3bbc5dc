"""The default policy: a home by threshold, lent nodes both ways, work that moves until it starts, rescue.

It knows backlogs, links and a threshold from the planner's model; it does not know who drives it. The threshold is what
no router beats on steady throughput; everything else here is about waiting. A job goes where it belongs, unless the
other side has a node to spare and would be done sooner; who waits may be taken by an idle node elsewhere, until prefill
starts; KV that is stuck on a link may be made again at home.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.greedy import Priced, ready_ns
from prfaas.core.routing.policy import Answer, Job
from prfaas.core.routing.pull import Pull
from prfaas.core.routing.reference import able

PATIENCE_NS = 60 * 10**9
"""So long a link's fault has lasted for each long job that may wait at home because of it. A fault that began a moment
ago will probably be over soon, and what waits at home then has delayed short ones for nothing."""
NARROW = 8
"""Long jobs that may wait at home because of a link that is always that narrow."""
BOUND_NS = 10**9
"""A link is the limit of a job when it makes it so much later than the prefill would."""

BAND = 1.4
"""A job up to so many times the threshold stays at home while fewer wait there than it has nodes: the threshold is
right for whole loads, and one that is exceeded a little costs less at a quiet home than in a queue away."""
FAULT_BAND = 2.0
"""The same while a link has a fault."""

CHEAPER = 0.8
"""A short job that would wait at home goes away if its price there is below this part of its price here. Long ones do
not come home for a price: where prompts are very uneven they would block it."""


class Ours(Pull):
    """`reserve`: nodes that a PrfaaS cluster keeps for long jobs when short ones would come; `keep`: nodes that a home
    keeps for short jobs when long ones would stay."""

    name = "ours"
    own_order = 1.0

    def __init__(self, threshold: int, order: float = 0.0, reserve: int = 0, keep: int = 0) -> None:
        super().__init__(threshold, order, reserve)
        self.keep = keep
        self._prices = Priced()

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
        if long and not self._near(job, home, away, clusters):
            return self._long(now_ns, job, home, away, clusters)
        answer = self._short(now_ns, job, home, away, clusters)
        if answer.reason == "short" and len(home):
            return self._cheaper(now_ns, job, answer, away, clusters)
        return answer

    def _near(self, job: Job, home: Backlog, away: Sequence[int], clusters: Sequence[Backlog]) -> bool:
        """Whether `job`, which is long, may be taken for a short one."""
        if len(home) >= home.nodes:
            return False
        faulty = any(clusters[at].links[home.at].since_ns is not None for at in away)
        return job.uncached[home.at] <= (FAULT_BAND if faulty else BAND) * self.threshold

    def _short(self, now_ns: int, job: Job, home: Backlog, away: Sequence[int], clusters: Sequence[Backlog]) -> Answer:
        spare = [at for at in away if clusters[at].idle - len(clusters[at]) > self.reserve]
        if not spare:
            return Answer(home.at, "short")
        here = ready_ns(now_ns, job, home)
        # Without hope: what would wait for a fault to end is done sooner at home.
        there, best = min([(ready_ns(now_ns, job, clusters[at], present=True), at) for at in spare])
        if there < here:
            return Answer(best, "spare", (here / 1e9, there / 1e9))
        return Answer(home.at, "short", (here / 1e9, there / 1e9))

    def _cheaper(
        self, now_ns: int, job: Job, answer: Answer, away: Sequence[int], clusters: Sequence[Backlog]
    ) -> Answer:
        """`answer`, to wait at home, unless another cluster is much cheaper and its link has no fault: what a fault
        makes of prices is over before the work that moved for it."""
        price = self._prices.price
        least, best = CHEAPER * price(now_ns, job, clusters[answer.cluster]), -1
        for at in away:
            if clusters[at].links[answer.cluster].since_ns is not None:
                continue
            there = price(now_ns, job, clusters[at])
            if there < least:
                least, best = there, at
        return answer if best < 0 else Answer(best, "cheaper", (least,))

    def _long(self, now_ns: int, job: Job, home: Backlog, away: Sequence[int], clusters: Sequence[Backlog]) -> Answer:
        there, best = min([(ready_ns(now_ns, job, clusters[at]), at) for at in away])
        free = home.idle - len(home)
        lent = free > self.keep
        if not lent:
            link = clusters[best].links[home.at]
            room = NARROW if link.since_ns is None else (now_ns - link.since_ns) // PATIENCE_NS
            if free + room <= 0:
                return Answer(best, "long")
            prefilled = clusters[best].wait_ns(now_ns, job) + job.prefill_ns[best] + link.rtt_ns
            if there <= prefilled + BOUND_NS:
                return Answer(best, "long")
        here = ready_ns(now_ns, job, home)
        if here < there:
            return Answer(home.at, "sooner_here" if lent else "link_bound", (here / 1e9, there / 1e9))
        return Answer(best, "long", (here / 1e9, there / 1e9))
