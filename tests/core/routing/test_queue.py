"""The prefill queue: order, bounds, and nothing lost."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.ids import Epoch, NodeName, TransferId
from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.policy import Job
from prfaas.core.routing.queue import (
    Dispatch,
    Expired,
    Finished,
    NodeGone,
    NodeSeen,
    Position,
    PrefillQueue,
    QueueEvent,
    Reject,
    Submit,
    Withdraw,
)


def node(name: str, ready: bool = True, slots: int = 1, max_tokens: int = 1000) -> NodeSeen:
    return NodeSeen(NodeName(name), ready, Epoch(1), slots, max_tokens)


def known(name: str, slots: int = 1) -> NodeSeen:
    """A node that takes ten nanoseconds a token, and says so."""
    return NodeSeen(NodeName(name), True, Epoch(1), slots, 100_000, Curve([(1, 10), (100_000, 1_000_000)]))


def submit(name: str, tokens: int = 10, deadline_ns: int = 10**9) -> Submit:
    return Submit(TransferId(name), tokens, deadline_ns)


def test_first_come_first_served_over_free_slots() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0"))
    assert Dispatch(TransferId("a"), NodeName("p0"), Epoch(1)) in queue.handle(1, submit("a"))
    assert queue.running == {"a": "p0"}
    assert [e for e in queue.handle(2, submit("b")) if isinstance(e, Position)] == [Position(TransferId("b"), 0)]
    assert [e for e in queue.handle(3, submit("c")) if isinstance(e, Position)] == [Position(TransferId("c"), 1)]
    started = [e for e in queue.handle(4, Finished(TransferId("a"))) if isinstance(e, Dispatch)]
    assert started == [Dispatch(TransferId("b"), NodeName("p0"), Epoch(1))]


def test_what_can_never_run_is_refused_at_once_with_the_sizes() -> None:
    queue = PrefillQueue(8)
    (refused,) = queue.handle(0, submit("a"))
    assert isinstance(refused, Reject)
    assert refused.code == "no_node"
    queue.handle(0, node("p0", max_tokens=1000))
    (refused,) = queue.handle(0, submit("b", tokens=1001))
    assert isinstance(refused, Reject)
    assert refused.code == "too_long"
    assert "1001" in refused.detail
    assert "1000" in refused.detail


def test_the_queue_is_bounded_and_deadlines_end_waiting() -> None:
    queue = PrefillQueue(1)
    queue.handle(0, node("p0"))
    queue.handle(0, submit("a"))
    queue.handle(0, submit("b"))
    (refused,) = queue.handle(0, submit("c"))
    assert isinstance(refused, Reject)
    assert refused.code == "queue_full"
    assert [e.code for e in queue.handle(1, Expired(TransferId("b"))) if isinstance(e, Reject)] == ["deadline_exceeded"]
    assert queue.handle(2, Expired(TransferId("a"))) == [], "a running job has no waiting deadline"


def test_losing_the_last_node_rejects_those_who_wait() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0"))
    queue.handle(0, submit("a"))
    queue.handle(0, submit("b"))
    effects = queue.handle(1, node("p0", ready=False))
    assert [e.code for e in effects if isinstance(e, Reject)] == ["no_node"]
    assert queue.running == {"a": "p0"}, "the running leg tells its own end"


def test_work_that_cannot_meet_its_deadline_is_refused_at_once() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", max_tokens=100_000))
    for i in range(4):  # a token takes 10 ns at best
        queue.handle(0, submit(f"seen{i}", tokens=1000, deadline_ns=10**6))
        queue.handle(10_000 + i, Finished(TransferId(f"seen{i}"), ok=True))
    (refused,) = queue.handle(0, submit("hopeless", tokens=1000, deadline_ns=9_000))
    assert isinstance(refused, Reject)
    assert refused.code == "deadline_unmeetable"
    assert "1000 tokens" in refused.detail
    assert not [e for e in queue.handle(0, submit("close", tokens=1000, deadline_ns=11_000)) if isinstance(e, Reject)]
    (refused,) = queue.handle(0, submit("behind", tokens=10, deadline_ns=50))
    assert isinstance(refused, Reject), "what runs does not count, what it needs itself does"
    queue.handle(0, submit("waits", tokens=1000, deadline_ns=10**6))
    (refused,) = queue.handle(0, submit("late", tokens=10, deadline_ns=5_000))
    assert isinstance(refused, Reject)
    assert "1000 waiting before" in refused.detail


def test_short_prompts_say_nothing_about_long_ones() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", max_tokens=100_000))
    for i in range(9):  # slow for its few tokens: a round trip, say
        queue.handle(0, submit(f"short{i}", tokens=6, deadline_ns=10**9))
        queue.handle(10**6, Finished(TransferId(f"short{i}"), ok=True))
    assert not [e for e in queue.handle(0, submit("long", tokens=6000, deadline_ns=10**8)) if isinstance(e, Reject)]


def test_failures_say_nothing_about_speed() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0"))
    for i in range(9):
        queue.handle(0, submit(f"failed{i}"))
        queue.handle(10**9, Finished(TransferId(f"failed{i}"), ok=False))
    assert not [e for e in queue.handle(0, submit("fresh", deadline_ns=5)) if isinstance(e, Reject)]


def test_a_node_that_is_gone_is_not_counted_and_its_jobs_end_by_themselves() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", max_tokens=1000))
    queue.handle(0, node("p1", slots=0, max_tokens=10))
    queue.handle(0, submit("a", tokens=500))
    queue.handle(0, submit("b", tokens=500))
    assert queue.on(NodeName("p0")) == 1
    effects = queue.handle(1, NodeGone(NodeName("p0")))
    assert [e.code for e in effects if isinstance(e, Reject)] == ["too_long"], "only p1 is left, for short ones"
    assert (queue.ready, queue.max_tokens, queue.running) == (1, 10, {"a": "p0"})
    queue.handle(2, Finished(TransferId("a")))
    queue.handle(3, NodeGone(NodeName("p0")))
    assert queue.on(NodeName("p0")) == 0
    queue.validate()


def dispatched(queue: PrefillQueue, now: int, done: str) -> list[str]:
    return [str(e.job) for e in queue.handle(now, Finished(TransferId(done))) if isinstance(e, Dispatch)]


def test_with_an_order_short_ones_pass_long_ones_but_not_for_ever() -> None:
    queue = PrefillQueue(8, order=0.5)
    queue.handle(0, known("p0"))
    queue.handle(0, submit("runs"))
    told = []
    for at, name, tokens in ((0, "long", 1000), (100, "short", 10), (4990, "late", 10)):
        told += [(e.job, e.ahead) for e in queue.handle(at, submit(name, tokens)) if isinstance(e, Position)]
    # Keys: 0 + 5000, 100 + 50, 4990 + 50.
    assert told == [("long", 0), ("short", 0), ("late", 2)]
    queue.validate()
    order, done = [], "runs"
    for _ in range(3):
        (done,) = dispatched(queue, 5000, done)
        order.append(done)
    assert order == ["short", "long", "late"]


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(1, 5000)), min_size=1, max_size=12), st.floats(0, 4))
def test_the_queue_and_the_backlog_have_one_order(jobs: list[tuple[int, int]], order: float) -> None:
    queue, backlog = PrefillQueue(20, order), Backlog(0, "home", 1, order)
    queue.handle(0, known("p0"))
    queue.handle(0, submit("runs"))
    now = 0
    for number, (later, tokens) in enumerate(jobs):
        now += later
        queue.handle(now, submit(str(number), tokens, 10**12))
        backlog.push(Job(number, now, tokens, (0,), [tokens], [10 * tokens], [0]))
    assert [int(job.job) for job in queue.line] == [job.number for job in backlog.waiting]


def test_times_are_learned_from_what_each_had_of_its_node() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", slots=2, max_tokens=100_000))
    assert queue.curve is None
    for start in range(0, 6 * 10**6, 10**6):
        tokens = 1000 if start % 2_000_000 else 8000
        for name in ("a", "b"):  # side by side: ten nanoseconds a token of the node, so twenty here
            queue.handle(start, submit(name, tokens, 10**9))
        for name in ("a", "b"):
            queue.handle(start + 20 * tokens, Finished(TransferId(name), ok=True))
    assert queue.curve is not None
    assert abs((queue.curve.at(4000) or 0) - 40_000) < 500


def test_what_a_node_had_kept_is_not_counted() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", max_tokens=100_000))
    for at, (tokens, cached) in enumerate([(9000, 8000), (8000, 0), (1000, 1000)] * 3):
        queue.handle(at, submit("a", tokens, 10**9))
        took_ns = 10 * (tokens - cached)
        queue.handle(at + took_ns, Finished(TransferId("a"), ok=True, cached=cached))
    assert queue.curve is not None
    assert abs((queue.curve.at(4000) or 0) - 40_000) < 500


def test_what_a_node_says_of_its_time_is_believed() -> None:
    queue = PrefillQueue(8)
    queue.handle(0, node("p0", max_tokens=100_000))
    for at, tokens in enumerate([1000, 8000] * 3):
        queue.handle(at, submit("a", tokens, 10**9))
        queue.handle(at + 10**6, Finished(TransferId("a"), ok=True, node_ns=10 * tokens))  # the rest was the link
    assert queue.curve is not None
    assert abs((queue.curve.at(4000) or 0) - 40_000) < 500
    queue.handle(0, known("p1"))
    queue.handle(0, known("p0"))
    assert queue.curve == known("p0").curve, "all say it themselves"


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 7), st.integers(1, 3)), max_size=60))
def test_no_job_is_lost_or_in_two_places(steps: list[tuple[int, int, int]]) -> None:
    queue, told = PrefillQueue(3), dict.fromkeys(range(8), "absent")
    for now, (what, which, n) in enumerate(steps):
        job = TransferId(str(which))
        event: QueueEvent = [
            Submit(job, n * 400, now + 5),
            Withdraw(job),
            Finished(job),
            Expired(job),
            node(f"p{which % 2}", ready=n != 1, slots=n, max_tokens=n * 400),
            Submit(job, n * 400, now + 5),
            NodeGone(NodeName(f"p{which % 2}")),
        ][what]
        if isinstance(event, Finished) and told[which] != "running":
            continue
        if isinstance(event, Withdraw) and told[which] == "waiting":
            told[which] = "absent"
        if isinstance(event, Finished):
            told[which] = "absent"
        duplicate = isinstance(event, Submit) and told[which] != "absent"
        for effect in queue.handle(now, event):
            match effect:
                case Dispatch(done):
                    told[int(done)] = "running"
                case Position(done):
                    told[int(done)] = "waiting"
                case Reject(done, code):
                    assert (code == "duplicate") == (duplicate and int(done) == which)
                    if code != "duplicate":
                        told[int(done)] = "absent"
        queue.validate()
        assert {int(j) for j in queue.waiting} == {j for j, s in told.items() if s == "waiting"}
        assert {int(j) for j in queue.running} == {j for j, s in told.items() if s == "running"}
