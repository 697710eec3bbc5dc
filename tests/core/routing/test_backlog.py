"""The queue of a cluster: its order, what it predicts, and that a job is in one place."""

from __future__ import annotations

from heapq import heapreplace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError
from prfaas.core.routing.backlog import LOOK, Backlog
from prfaas.core.routing.policy import Job
from prfaas.core.routing.uplink import NEVER_NS, Uplink

SECOND_NS = 10**9


def job(number: int, arrival_ns: int = 0, x: int = 10, kv: int = 0) -> Job:
    return Job(number, arrival_ns, 100, (0, 1), [100, 100], [x, x], [0, kv])


def test_first_come_first_served_by_default() -> None:
    backlog = Backlog(0, "home", 1)
    for number, arrival in ((0, 5), (1, 3), (2, 9)):
        backlog.push(job(number, arrival))
    assert [one.number for one in backlog.waiting] == [1, 0, 2]
    assert backlog.pop().number == 1


def test_size_counts_by_its_weight_and_age_wins_in_the_end() -> None:
    backlog = Backlog(0, "home", 1, order=2.0)
    backlog.push(job(0, 0, x=100))
    backlog.push(job(1, 150, x=10))
    backlog.push(job(2, 190, x=10))  # 190 + 20 is after 0 + 200
    assert [one.number for one in backlog.waiting] == [1, 0, 2]


def test_wait_is_what_list_scheduling_says() -> None:
    backlog = Backlog(0, "home", 2)
    backlog.started(100)
    backlog.started(40)
    for number, x in enumerate((30, 50, 20)):
        backlog.push(job(number, number, x))
    # 40: 30 until 70; 70: 50 until 120; 100: 20 until 120
    assert backlog.starts(0) == [40, 70, 100]
    assert backlog.wait_ns(0, job(9, 9)) == 120
    assert backlog.wait_ns(50, job(9, 0)) == 30  # only the first is before it: 50 until 80, then 100
    assert backlog.per_node_ns(0) == (100 + 100 + 40) // 2


@given(
    st.integers(1, 4),
    st.lists(st.integers(1, 1000), max_size=3 * LOOK),
    st.lists(st.integers(1, 1000), max_size=4),
)
def test_the_prediction_is_near_that_of_going_through_all(nodes: int, waiting: list[int], running: list[int]) -> None:
    backlog = Backlog(0, "home", nodes)
    for end in running[:nodes]:
        backlog.started(end)
    for number, x in enumerate(waiting):
        backlog.push(job(number, number, x))
    free = sorted([*running[:nodes], *[0] * (nodes - len(running[:nodes]))])
    for x in waiting:
        heapreplace(free, free[0] + x)
    found = backlog.wait_ns(0, job(10**6, 10**6))
    exact = free[0]
    if len(waiting) <= LOOK:
        assert found == exact
    else:
        assert abs(found - exact) <= 1000 + 0.5 * exact
    backlog.validate()


def test_a_late_claim_finds_another_epoch() -> None:
    here, there = Backlog(0, "home", 1), Backlog(1, "far", 1)
    one = job(0)
    here.push(one)
    offered = one.epoch
    assert here.claim(one, offered)
    assert not here.claim(one, offered)
    there.push(one)
    assert one.epoch == offered + 1
    assert not here.claim(one, offered)
    assert not there.claim(one, offered)
    assert there.claim(one, one.epoch)


def test_what_starts_cannot_be_claimed() -> None:
    backlog = Backlog(0, "home", 1)
    one = job(0)
    backlog.push(one)
    assert backlog.pop() is one
    assert not backlog.claim(one, one.epoch)


def test_queued_bytes_are_those_that_would_cross() -> None:
    backlog = Backlog(1, "far", 1)
    backlog.links[0] = Uplink(10**9, 0)
    for number in range(3):
        backlog.push(job(number, kv=100 * (number + 1)))
    assert backlog.links[0].queued_bytes == 600
    backlog.pop()
    backlog.validate()
    assert [one.number for one in backlog.drop_all()] == [1, 2]
    assert backlog.links[0].queued_bytes == 0
    assert backlog.work_ns == 0


def test_no_node_means_never() -> None:
    backlog = Backlog(0, "home", 0)
    backlog.push(job(0))
    assert backlog.wait_ns(0, job(1, 1)) == NEVER_NS
    assert backlog.starts(0) == [NEVER_NS]
    assert backlog.idle == 0


def test_the_end_of_what_never_began_is_a_bug() -> None:
    with pytest.raises(InvariantError):
        Backlog(0, "home", 1).ended(5)


def test_a_link_drains_at_its_present_rate_or_hopes() -> None:
    link = Uplink(8 * 10**9, 0)  # a byte a ns
    assert link.drain_ns(0, 1000) == 1000
    link.carries(100, 8 * 10**8)
    assert link.since_ns == 100
    assert link.drain_ns(100, 1000) == 1000  # it began this moment, so it should end this moment
    assert link.drain_ns(5100, 1000) == 5000 + 1000
    assert link.drain_ns(50_100, 1000) == 10_000
    assert link.present_ns(1000) == 10_000
    link.carries(60_000, 0)
    assert link.since_ns == 100
    assert link.present_ns(1) == NEVER_NS
    link.carries(70_000, 8 * 10**9)
    assert link.since_ns is None


def test_an_unknown_link_is_not_held_against_it() -> None:
    link = Uplink(None, 0)
    assert link.drain_ns(0, 10**12) == 0
    assert link.present_ns(10**12) == 0
