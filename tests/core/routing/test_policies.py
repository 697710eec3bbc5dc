"""What each policy answers in situations that can be worked out by hand."""

from __future__ import annotations

import pytest

from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.catalog import DEFAULT, NAMES, policy_of
from prfaas.core.routing.policy import IMPOSSIBLE, Job
from prfaas.core.routing.reference import Paper
from prfaas.core.routing.uplink import Uplink

SECOND_NS = 10**9
GBPS = 10**9


def clusters(home: int = 2, far: int = 2, bps: int = 100 * GBPS) -> list[Backlog]:
    """A home, and a PrfaaS cluster with a link."""
    made = [Backlog(0, "home", home), Backlog(1, "far", far)]
    made[1].links[0] = Uplink(bps, 5 * 10**6)
    made[1].stuck[0] = {}
    return made


def job(number: int, tokens: int, at_ns: int = 0, cached: tuple[int, int] = (0, 0), kv: int = 10**8) -> Job:
    """At home a token takes 150 us, away 60."""
    uncached = [tokens - cached[0], tokens - cached[1]]
    return Job(number, at_ns, tokens, (0, 1), uncached, [uncached[0] * 150_000, uncached[1] * 60_000], [0, kv])


def busy(cluster: Backlog, seconds: float) -> None:
    """All its nodes work so long."""
    for _ in range(cluster.nodes):
        cluster.started(int(seconds * SECOND_NS))


@pytest.mark.parametrize(
    ("name", "tokens", "cluster", "reason"),
    [
        ("local", 90_000, 0, "local"),
        ("remote", 100, 1, "remote"),
        ("threshold", 20_000, 0, "short"),
        ("threshold", 20_001, 1, "long"),
        ("paper", 20_001, 1, "long"),
        ("balanced", 90_000, 0, "least_loaded"),
        ("fastest", 5_000, 1, "fastest"),
        ("priced", 5_000, 1, "priced"),
        ("ours", 20_001, 1, "spare"),
        ("ours", 28_001, 1, "long"),
        ("ours", 5_000, 1, "spare"),
    ],
)
def test_with_nothing_to_do(name: str, tokens: int, cluster: int, reason: str) -> None:
    answer = policy_of(name, 20_000).place(0, job(0, tokens), clusters())
    assert (answer.cluster, answer.reason) == (cluster, reason)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_sent_where_no_node_is(name: str) -> None:
    policy = policy_of(name, 20_000)
    for tokens in (100, 90_000):
        assert policy.place(0, job(0, tokens), clusters(far=0)).cluster == 0
        assert policy.place(0, job(0, tokens), clusters(home=0)).cluster == 1


@pytest.mark.parametrize("name", NAMES)
def test_nobody_is_sent_where_it_cannot_run(name: str) -> None:
    naive = job(0, 5000)
    naive.prefill_ns[0] = IMPOSSIBLE
    assert policy_of(name, 20_000).place(0, naive, clusters(home=0)).cluster == 1


def test_balanced_looks_at_work_only() -> None:
    found = clusters()
    busy(found[0], 1.0)
    assert policy_of("balanced", 0).place(0, job(0, 100), found).cluster == 1
    busy(found[1], 2.0)
    assert policy_of("balanced", 0).place(0, job(0, 90_000), found).cluster == 0


def test_paper_takes_the_longer_prefix_where_bandwidth_is_plentiful_and_says_to_copy_it() -> None:
    policy = policy_of("paper", 20_000)
    answer = policy.place(0, job(0, 60_000, cached=(0, 50_000)), clusters())
    assert (answer.cluster, answer.reason, answer.copy_from) == (0, "short", 1)
    answer = policy.place(0, job(0, 90_000, cached=(50_000, 10_000)), clusters())
    assert (answer.cluster, answer.reason, answer.copy_from) == (1, "long", 0)


def test_paper_judges_each_cache_alone_where_bandwidth_is_scarce() -> None:
    found = clusters(bps=GBPS)
    found[1].links[0].unsent_bytes = 10**9  # eight seconds
    answer = policy_of("paper", 20_000).place(0, job(0, 60_000, cached=(0, 50_000)), found)
    assert (answer.cluster, answer.reason, answer.copy_from) == (1, "long", -1)


def test_paper_raises_its_threshold_near_saturation_and_lowers_it_again() -> None:
    policy = Paper(20_000)
    found = clusters(bps=GBPS)
    found[1].links[0].unsent_bytes = 10**9
    for second in range(10):
        policy.place(second * SECOND_NS, job(second, 100), found)
    raised = policy.factor
    assert raised == pytest.approx(1.1**10)
    assert policy.place(10 * SECOND_NS, job(10, 21_000), found).reason == "short"
    found[1].links[0].unsent_bytes = 0
    for second in range(11, 40):
        policy.place(second * SECOND_NS, job(second, 100), found)
    assert policy.factor == 1.0


def test_ours_keeps_a_long_one_home_when_that_is_sooner_and_a_node_is_free() -> None:
    found = clusters()
    busy(found[1], 30.0)
    long = job(0, 40_000)  # 6 s at home, 2.4 away
    answer = policy_of("ours", 20_000).place(0, long, found)
    assert (answer.cluster, answer.reason) == (0, "sooner_here")
    assert answer.scores == (6.0, 32.405)
    busy(found[0], 1.0)
    assert policy_of("ours", 20_000).place(0, long, found).cluster == 1


def test_ours_keeps_who_is_a_little_too_long_at_a_quiet_home_and_more_so_in_a_fault() -> None:
    found = clusters(home=1)
    for cluster in found:
        busy(cluster, 2.0)
    policy = policy_of("ours", 20_000)
    assert policy.place(0, job(0, 28_000), found).reason == "short"
    assert policy.place(0, job(0, 28_001), found).cluster == 1
    found[1].links[0].carries(0, GBPS)
    assert policy.place(0, job(0, 40_000), found).cluster == 0
    assert policy.place(0, job(0, 40_001), found).cluster == 1
    found[0].push(job(1, 15_000))
    assert policy.place(0, job(0, 28_000), found).cluster == 1


def test_ours_lends_no_node_behind_a_faulty_link_in_the_hope_that_it_ends() -> None:
    found = clusters()
    found[1].links[0].carries(0, GBPS)
    short = job(0, 5000, kv=10**9)  # 0.75 s at home; 8 s to cross now
    assert policy_of("ours", 20_000).place(0, short, found).cluster == 0


def test_an_idle_node_takes_what_gains_most() -> None:
    found = clusters(home=1, far=1)
    busy(found[1], 10.0)
    small, large = job(0, 21_000), job(1, 60_000)
    for one in (large, small):
        found[1].push(one)
    policy = policy_of("ours", 20_000)
    # There: large begins at 10 and ends at 13.6, small ends at 14.86. Here: 9 and 3.15 s.
    assert policy.claim(0, 0, found) is small
    assert found[1].claim(small, small.epoch)
    assert policy.claim(0, 0, found) is large


def test_an_idle_node_leaves_what_would_lose() -> None:
    found = clusters(home=1, far=1)
    busy(found[1], 1.0)
    found[1].push(job(0, 60_000))  # there 1 + 3.6, here 9
    assert policy_of("ours", 20_000).claim(0, 0, found) is None


def test_an_idle_remote_node_takes_from_home_too() -> None:
    found = clusters(home=1, far=1)
    busy(found[0], 5.0)
    short = job(0, 5000)
    found[0].push(short)
    assert policy_of("ours", 20_000).claim(0, 1, found) is short


def test_who_is_stuck_on_a_dead_link_is_rescued_once_hope_is_gone() -> None:
    found = clusters(bps=100 * GBPS)
    stuck = job(0, 20_000, kv=10**9)
    stuck.where = 1
    found[1].stuck[0][0] = stuck
    found[1].links[0].unsent_bytes = 10**9
    found[1].links[0].carries(0, 0)
    policy = policy_of("ours", 20_000)
    assert policy.rescue(SECOND_NS, 0, found) is None  # 3 s to make it again; the fault may last another second
    assert policy.rescue(60 * SECOND_NS, 0, found) is stuck


def test_the_default_has_an_order_of_its_own() -> None:
    assert policy_of(DEFAULT, 1).order == policy_of("ours", 1).order
    assert policy_of("ours", 1, 3.0).order == 3.0
    assert policy_of("priced", 1).order == 0.0


def test_ours_sends_who_would_wait_where_it_is_much_cheaper_but_not_because_of_a_fault() -> None:
    found = clusters(home=1, far=1)
    busy(found[0], 4.0)
    busy(found[1], 4.0)
    for number in range(4):
        found[0].push(job(number, 15_000))  # 2.25 s each
    short = job(9, 10_000, at_ns=1)
    policy = policy_of("ours", 20_000)
    assert policy.place(1, short, found).reason == "cheaper"
    assert policy.place(1, short, found).cluster == 1
    found[1].links[0].carries(0, GBPS)
    assert policy.place(1, short, found).reason == "short"
