"""Pace: a bucket never exceeds its line, and a link's leases never add up to more than the link."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.transfer.pacing import SECOND, Bucket, Grant, Shares

MS = SECOND // 1000


def run(bucket: Bucket, now: int, until: int, size: int) -> list[int]:
    """Send as fast as allowed; the times of the takes."""
    times = []
    while now < until:
        wait = bucket.take(now, size)
        if wait is None:
            break
        if wait == 0:
            times.append(now)
        now += max(wait, 1)
    return times


def test_a_bucket_sends_at_its_rate_and_never_faster() -> None:
    bucket = Bucket()
    bucket.set_rate(0, 8_000_000, 100 * SECOND, fence=1)  # 1 MB/s
    times = run(bucket, 0, 10 * SECOND, 10_000)
    assert len(times) in (999, 1000)
    for i, a in enumerate(times):
        for count in (1, 7, 50):
            if i + count < len(times):
                window = times[i + count] - a
                assert count * 10_000 * 8 * SECOND <= 8_000_000 * window


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "lease"]), st.integers(1, 200_000), st.integers(0, 300 * MS)), max_size=60
    )
)
def test_no_window_carries_more_than_its_rates_plus_one_take(steps: list[tuple[str, int, int]]) -> None:
    bucket, now, fence, top = Bucket(), 0, 0, 0
    takes: list[tuple[int, int]] = []
    budget: list[tuple[int, int, int]] = []  # rate in force from, until
    for what, amount, pause in steps:
        now += pause
        if what == "lease":
            fence += 1
            rate = amount * 100
            if budget:
                start, end, old = budget[-1]
                budget[-1] = (start, min(end, now), old)
            bucket.set_rate(now, rate, 100 * MS, fence)
            budget.append((now, now + 100 * MS, rate))
        elif bucket.take(now, amount) == 0:
            takes.append((now, amount))
            top = max(top, amount)
    for i, (begin, _) in enumerate(takes):
        sent = 0
        for end, size in takes[i:]:
            sent += size
            line = sum(max(0, min(end, stop) - max(begin, start)) * rate for start, stop, rate in budget)
            burst = 5 * MS * max(rate for _, _, rate in budget)
            assert sent * 8 * SECOND <= line + burst + top * 8 * SECOND


def test_a_timer_that_fires_late_costs_no_line_time() -> None:
    """Asked a millisecond late each time, the line is still full; of a longer lapse the burst is made up for."""
    bucket = Bucket(burst_ns=4 * MS)
    bucket.set_rate(0, 8_000_000_000, 100 * SECOND, fence=1)  # 1 GB/s
    now = sent = 0
    while now < SECOND:
        wait = bucket.take(now, 1_000_000)
        assert wait is not None
        if wait == 0:
            sent += 1_000_000
        else:
            now += wait + MS
    assert 0.99e9 < sent < 1.01e9
    while bucket.take(now, 1_000_000) == 0:
        pass
    for lapse, made_up in ((10 * MS, 5), (SECOND, 1)):
        now += lapse
        at_once = 0
        while bucket.take(now, 1_000_000) == 0:
            at_once += 1
        assert at_once == made_up


def test_without_a_lease_nothing_leaves() -> None:
    bucket = Bucket()
    assert bucket.take(0, 1) is None
    assert bucket.set_rate(0, 8_000_000, 1 * SECOND, fence=5)
    assert bucket.take(0, 1000) == 0
    assert bucket.take(0, 1000) == MS
    assert bucket.take(SECOND, 1000) is None
    assert not bucket.set_rate(SECOND, 8_000_000_000, 1 * SECOND, fence=4)
    assert bucket.take(SECOND, 1000) is None
    assert bucket.set_rate(SECOND, 8_000_000, 1 * SECOND, fence=5)
    assert bucket.take(SECOND, 1000) == 0


def test_what_would_outlast_the_lease_waits_for_the_next() -> None:
    bucket = Bucket()
    bucket.set_rate(0, 8_000_000, SECOND, fence=1)
    assert bucket.take(SECOND // 2, 600_000) is None
    assert bucket.take(SECOND // 2, 400_000) == 0
    bucket.set_rate(SECOND, 8_000_000, SECOND, fence=2)
    assert bucket.take(SECOND, 600_000) == 0


def test_what_outlasts_every_lease_is_sent_and_owed() -> None:
    bucket = Bucket()
    bucket.set_rate(0, 8_000, SECOND, fence=1)
    assert bucket.take(0, 3000) == 0
    bucket.set_rate(SECOND, 8_000, SECOND, fence=2)
    assert bucket.take(SECOND, 1) is None
    bucket.set_rate(3 * SECOND, 8_000, SECOND, fence=3)
    assert bucket.take(3 * SECOND, 1) == SECOND or bucket.take(3 * SECOND, 1) is None


def test_a_rate_of_nothing_stops() -> None:
    bucket = Bucket()
    bucket.set_rate(0, 0, SECOND, fence=1)
    assert bucket.take(0, 1) is None
    assert bucket.rate_bps(0) == 0


def settle(shares: Shares, now: int) -> dict[str, Grant]:
    """Deliver and acknowledge at once until nothing changes."""
    latest: dict[str, Grant] = {}
    for _ in range(10):
        grants = shares.grants(now)
        if not grants:
            return latest
        for grant in grants:
            shares.acknowledge(now, grant.node, grant.fence)
            latest[grant.node] = grant
    raise AssertionError("does not settle")


def test_shares_follow_the_number_of_transfers() -> None:
    shares = Shares(1000, 3 * SECOND, SECOND)
    shares.active("a", 1)
    assert settle(shares, 0)["a"].rate_bps == 1000
    shares.active("b", 3)
    grants = settle(shares, 1)
    assert (grants["a"].rate_bps, grants["b"].rate_bps) == (250, 750)
    assert grants["b"].fence > grants["a"].fence
    shares.active("a", 0)
    assert settle(shares, 2)["b"].rate_bps == 1000


def test_a_share_passes_on_only_when_it_is_given_up() -> None:
    shares = Shares(1000, 3 * SECOND, SECOND)
    shares.active("a", 1)
    settle(shares, 0)
    shares.active("b", 1)
    [down] = shares.grants(10)
    assert (down.node, down.rate_bps) == ("a", 500)
    assert shares.grants(11) == []
    shares.acknowledge(12, "a", down.fence)
    [up] = shares.grants(12)
    assert (up.node, up.rate_bps) == ("b", 500)


def test_a_silent_node_loses_its_share_when_its_lease_is_over() -> None:
    shares = Shares(1000, 3 * SECOND, SECOND)
    shares.active("a", 1)
    settle(shares, 0)
    shares.active("b", 1)
    shares.grants(SECOND)  # lost on the way, and a is never heard of again
    shares.forget("a")
    lost = shares.grants(2 * SECOND)
    assert [(grant.node, grant.rate_bps) for grant in lost] == [("a", 0)]
    assert [grant.node for grant in shares.grants(3 * SECOND - 1)] == []
    at = 3 * SECOND
    while all(grant.node != "b" for grant in shares.grants(at)):
        following = shares.next_ns(at)
        assert following is not None
        at = following
    assert at <= 2 * SECOND + 4 * SECOND


def test_renewal_is_due_after_a_third_of_the_lease() -> None:
    shares = Shares(1000, 3 * SECOND, SECOND)
    shares.active("a", 1)
    settle(shares, 0)
    assert shares.grants(SECOND - 1) == []
    assert shares.next_ns(0) == SECOND
    assert [grant.rate_bps for grant in shares.grants(SECOND)] == [1000]


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, str, int, int]]:
    step = st.tuples(
        st.sampled_from(["active", "grant", "deliver", "ack", "lose", "wait"]),
        st.sampled_from(["a", "b", "c"]),
        st.integers(0, 4),
        st.integers(0, 2 * SECOND),
    )
    return draw(st.lists(step, max_size=80))


@settings(max_examples=300)
@given(histories())
def test_the_sum_of_what_nodes_may_send_never_exceeds_the_link(history: list[tuple[str, str, int, int]]) -> None:
    """Nodes are real buckets; messages are lost, late (within the flight time) or unacknowledged."""
    lease, flight = 3 * SECOND, SECOND
    shares = Shares(1000, lease, flight, first_fence=100)
    nodes = {name: Bucket() for name in "abc"}
    on_the_way: list[tuple[int, Grant]] = []
    acks: list[Grant] = []
    now, fences = 0, [100]
    for what, name, number, pause in history:
        if what == "active":
            shares.active(name, number)
        elif what == "grant":
            grants = shares.grants(now)
            on_the_way += [(now, grant) for grant in grants]
            fences += [grant.fence for grant in grants]
        elif what == "deliver" and on_the_way:
            sent, grant = on_the_way.pop(number % len(on_the_way))
            if now - sent < flight and nodes[grant.node].set_rate(now, grant.rate_bps, lease, grant.fence):
                acks.append(grant)
        elif what == "ack" and acks:
            grant = acks.pop(number % len(acks))
            shares.acknowledge(now, grant.node, grant.fence)
        elif what == "lose" and on_the_way:
            on_the_way.pop(number % len(on_the_way))
        else:
            now += pause
        assert sum(bucket.rate_bps(now) for bucket in nodes.values()) <= 1000
    assert fences == sorted(set(fences))
