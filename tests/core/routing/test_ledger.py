"""Backlogs of a gateway's sources, from its own jobs and from reports of those of others."""

from __future__ import annotations

import pytest

from prfaas.core.errors import InvariantError
from prfaas.core.ids import ClusterName, LinkName, RequestId, TransferId
from prfaas.core.routing.catalog import policy_of
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.ledger import Ledger
from prfaas.core.routing.policy import IMPOSSIBLE, Job
from prfaas.core.routing.uplink import NEVER_NS
from prfaas.core.routing.view import JobSeen, Source, SourceSeen

HOME, FAR, OTHER = ClusterName("home"), ClusterName("far"), ClusterName("other")
LINEAR = Curve([(1, 10), (100_000, 1_000_000)])
"""Ten nanoseconds a token."""
TWICE = Curve([(1, 20), (100_000, 2_000_000)])


def ledger(order: float = 0.0, nodes: int = 1) -> Ledger:
    sources = [
        Source(FAR, LinkName("far->home"), False, 8 * 10**9, 5),
        Source(HOME, LinkName("home->home"), True),
        Source(OTHER, LinkName("other->home"), False),
    ]
    made = Ledger(sources, order)
    for source in sources:
        made.report(0, SourceSeen(source.cluster, nodes, 0, 0, 100_000, curve=LINEAR))
    made.kv.seen(100, 200)
    made.kv.seen(1000, 2000)
    return made


def place(made: Ledger, name: str, tokens: int, cluster: ClusterName, now_ns: int = 0, runs: bool = False) -> Job:
    job = made.priced(now_ns, RequestId(name), tokens, [True] * 3)
    made.follow(now_ns, RequestId(name), (TransferId(f"{name}.1"), cluster, runs))
    return job


def seen(transfer: str, tokens: int = 1000, since_ns: int = 0) -> JobSeen:
    return JobSeen(TransferId(transfer), tokens, since_ns)


def test_home_is_first_and_only_others_have_a_link() -> None:
    made = ledger()
    assert [backlog.name for backlog in made.backlogs] == [HOME, FAR, OTHER]
    assert [list(backlog.links) for backlog in made.backlogs] == [[], [0], [0]]
    assert (made.backlogs[1].links[0].nominal_bps, made.backlogs[2].links[0].nominal_bps) == (8 * 10**9, None)
    with pytest.raises(InvariantError, match="our own cluster"):
        Ledger([Source(FAR, LinkName("far->home"), False)], 0.0)


def test_a_job_waits_runs_and_is_gone() -> None:
    made = ledger()
    far, link = made.backlogs[1], made.backlogs[1].links[0]
    job = place(made, "a", 1000, FAR, now_ns=100)
    assert (job.prefill_ns, job.kv_bytes, job.arrival_ns) == ([10_000] * 3, [0, 2000, 2000], 100)
    assert (len(far), far.ends, link.queued_bytes, link.unsent_bytes) == (1, [], 2000, 0)
    made.follow(200, RequestId("a"), (TransferId("a.1"), FAR, True))
    assert (len(far), far.ends, link.queued_bytes, link.unsent_bytes) == (0, [10_200], 0, 2000)
    made.follow(300, RequestId("a"), None)
    assert (len(far), far.ends, link.unsent_bytes) == (0, [], 0)
    made.forget(300, RequestId("a"))
    made.validate({})


def test_prefills_that_share_a_node_end_one_after_another() -> None:
    made = ledger()
    place(made, "a", 1000, HOME, runs=True)
    place(made, "b", 1000, HOME, now_ns=500, runs=True)
    assert made.backlogs[0].ends == [10_000, 20_000]
    assert made.backlogs[0].wait_ns(500, made.priced(500, RequestId("c"), 1, [True] * 3)) == 19_500


def test_another_attempt_leaves_nothing_behind() -> None:
    made = ledger()
    place(made, "a", 1000, FAR, runs=True)
    job = made.priced(50, RequestId("a"), 1000, [True, False, True])
    assert made.backlogs[1].ends == [], "it does not wait for itself"
    assert job.prefill_ns == [10_000, IMPOSSIBLE, 10_000]
    made.follow(50, RequestId("a"), (TransferId("a.2"), HOME, False))
    made.validate({RequestId("a"): (TransferId("a.2"), HOME, False)})


def test_jobs_of_others_wait_and_run_but_cannot_be_claimed() -> None:
    made = ledger(nodes=2)
    far = made.backlogs[1]
    report = SourceSeen(FAR, 2, 2, 2, 100_000, queue=(seen("x.1"), seen("y.1", 500)), busy=(seen("z.1", 1000, 400),))
    made.report(1000, report)
    assert (len(far), far.work_ns, far.ends) == (2, 15_000, [10_600])
    made.report(1000, report)
    assert (len(far), far.work_ns, far.ends) == (2, 15_000, [10_600]), "a report replaces the one before"
    assert policy_of("ours", 1000).claim(1000, 0, made.backlogs) is None
    place(made, "a", 2000, FAR, now_ns=1000)
    claimed = policy_of("ours", 1000).claim(1000, 0, made.backlogs)
    assert claimed is not None
    assert claimed.tokens == 2000, "only ours may move"
    made.report(1001, SourceSeen(FAR, 2, 0, 0, 100_000))
    assert (len(far), far.ends) == (1, [])


def test_nothing_is_counted_twice() -> None:
    made = ledger()
    place(made, "a", 1000, FAR)
    place(made, "b", 1000, FAR, runs=True)
    place(made, "c", 1000, FAR, runs=True)
    made.follow(10, RequestId("c"), None)
    made.report(
        20, SourceSeen(FAR, 1, 2, 2, 100_000, queue=(seen("a.1"), seen("x.1")), busy=(seen("b.1"), seen("c.1")))
    )
    far = made.backlogs[1]
    assert (len(far), far.ends) == (2, [10_000]), "c has ended since the report was made"
    made.report(20 + 60 * 10**9, SourceSeen(FAR, 1, 0, 1, 100_000, busy=(seen("b.1"),)))
    assert (len(far), len(far.ends)) == (1, 1)


def test_a_head_that_lists_our_job_as_running_is_believed_before_it_is_bound() -> None:
    made = ledger()
    place(made, "a", 1000, FAR)
    made.report(5000, SourceSeen(FAR, 1, 0, 1, 100_000, busy=(seen("a.1", 1000, 4000),)))
    assert (len(made.backlogs[1]), made.backlogs[1].ends) == (0, [11_000])
    made.follow(6000, RequestId("a"), (TransferId("a.1"), FAR, True))
    assert made.backlogs[1].ends == [11_000]


def test_what_is_not_listed_counts_by_its_tokens() -> None:
    made = ledger()
    far = made.backlogs[1]
    listed = tuple(seen(f"x.{n}", 100) for n in range(64))
    report = SourceSeen(
        FAR, 1, 74, 67, 100_000, queue=listed, busy=tuple(seen(f"y.{n}", 10) for n in range(64)),
        rest_waiting=5000, rest_running=300,
    )  # fmt: skip
    made.report(0, report)
    assert (len(far), far.work_ns) == (65, 64 * 1000 + 10 * 5000)
    assert len(far.ends) == 67
    place(made, "a", 500, FAR)
    made.report(0, report)
    assert far.work_ns == 64 * 1000 + 9 * 5000 + 5000, "one of the ten was ours"


def test_a_new_speed_prices_those_who_wait_anew() -> None:
    made = ledger(order=1.0)
    long, short = place(made, "a", 1000, FAR), place(made, "b", 10, FAR, now_ns=5000)
    assert [job.number for job in made.backlogs[1].waiting] == [short.number, long.number]
    made.report(6000, SourceSeen(FAR, 1, 0, 0, 100_000, curve=TWICE))
    assert (long.prefill_ns, short.prefill_ns[1]) == ([10_000, 20_000, 10_000], 200)
    assert made.backlogs[1].work_ns == 20_200
    made.backlogs[1].validate()


def test_a_cluster_that_cannot_be_asked_has_no_node_but_keeps_its_speed() -> None:
    made = ledger()
    made.report(0, SourceSeen(FAR, 1, 1, 0, 100_000, queue=(seen("x.1"),)))
    made.report(0, SourceSeen(FAR, 0, 0, 0, 0, "refused"))
    assert (made.backlogs[1].nodes, len(made.backlogs[1])) == (0, 0)
    assert made.knows(1, 1000)
    assert made.backlogs[1].wait_ns(0, made.priced(0, RequestId("a"), 5, [True] * 3)) == NEVER_NS


def test_what_is_not_known_is_named_where_there_is_a_choice() -> None:
    made = ledger()
    fresh = Ledger(made.sources, 0.0)
    assert fresh.unknown(fresh.priced(0, RequestId("a"), 100, [True] * 3)) == (
        "speed:home", "speed:far", "speed:other", "bandwidth:other", "kv_bytes",
    )  # fmt: skip
    assert fresh.unknown(fresh.priced(0, RequestId("b"), 100, [True, False, False])) == ()
    assert made.unknown(made.priced(0, RequestId("c"), 100, [True, True, False])) == ()
    assert made.unknown(made.priced(0, RequestId("d"), 200_000, [True, True, False])) == ("speed:home", "speed:far")
