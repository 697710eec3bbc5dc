"""Policies that weigh each option at once: `fastest` and `priced`. They are rivals of `ours`, and their predictions are
shared with it.

They know backlogs and links; they never move what they placed.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.policy import Answer, Job
from prfaas.core.routing.reference import Settled, able


def ready_ns(now_ns: int, job: Job, cluster: Backlog, present: bool = False) -> int:
    """How long until the KV of `job`, which is not in the queue, would be at its home if `cluster` prefilled it.

    KV leaves while it is made: what takes longer counts, the wait and the prefill, or what must cross the link before
    the last byte of it. `present`: as the link is now, without hope of better.
    """
    done = cluster.wait_ns(now_ns, job) + job.prefill_ns[cluster.at]
    link = cluster.links.get(job.options[0])
    if link is None:
        return done
    through = link.unsent_bytes + link.queued_bytes + job.kv_bytes[cluster.at]
    crossed = link.present_ns(through) if present else link.drain_ns(now_ns, through)
    return (done if done > crossed else crossed) + link.rtt_ns


class Fastest(Settled):
    """Join the cluster that would have the KV there first."""

    name = "fastest"

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        found = able(job, clusters)
        scores = tuple([ready_ns(now_ns, job, clusters[at], present=True) / 1e9 for at in found])
        best = min(range(len(found)), key=scores.__getitem__)
        return Answer(found[best], "fastest", scores)


class Priced(Settled):
    """As `Fastest`, but what a job takes from others has a price: node time by the work that waits for it, and the
    link's by its backlog."""

    name = "priced"
    impatience = 2.0
    """What a second of one's own is worth against one that others wait."""

    def place(self, now_ns: int, job: Job, clusters: Sequence[Backlog]) -> Answer:
        """See `Policy`."""
        found = able(job, clusters)
        scores = tuple([self.price(now_ns, job, clusters[at]) for at in found])
        best = min(range(len(found)), key=scores.__getitem__)
        return Answer(found[best], "priced", scores)

    def price(self, now_ns: int, job: Job, cluster: Backlog) -> float:
        """Of `job` on `cluster`, in square seconds."""
        own = ready_ns(now_ns, job, cluster, present=True) / 1e9
        work = cluster.per_node_ns(now_ns) / 1e9
        total = self.impatience * own + work * job.prefill_ns[cluster.at] / 1e9
        link = cluster.links.get(job.options[0])
        if link is not None:
            backlog = link.present_ns(link.unsent_bytes) / 1e9
            total += backlog * link.present_ns(job.kv_bytes[cluster.at]) / 1e9
        return total
