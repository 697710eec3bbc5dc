"""Which policy decides live, and what is told of signals that it lacked."""

from __future__ import annotations

import pytest

from prfaas.core.ids import ClusterName, NodeName, RequestId
from prfaas.core.routing.catalog import NAMES, policy_of
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import AskCredit, CancelPrefill, Decided, Refuse, ReleaseCredit
from prfaas.core.routing.events import Arrived, CreditGranted, LegFailed, PrefillBound, PrefillDone
from prfaas.core.routing.request import MOVES
from prfaas.core.routing.router import Router
from prfaas.core.routing.view import DecodeSeen, SourceSeen
from prfaas.testing.scenario import FAR, HOME, MS, router, world_up

SLOW, FAST = Curve([(1, MS), (100_000, 100_000 * MS)]), Curve([(1, MS // 4), (100_000, 25_000 * MS)])
"""A millisecond a token, and a quarter of one."""


def up(kind: str, *, home: Curve | None = SLOW, far: Curve | None = FAST) -> Router:
    machine = router(threshold=1000, whole_limit=8000, kind=kind)
    for event in world_up():
        machine.handle(0, event)
    machine.handle(0, SourceSeen(FAR, 1, 0, 0, 100_000, curve=far))
    machine.handle(0, SourceSeen(HOME, 1, 0, 0, 100_000, curve=home))
    return machine


def decide(machine: Router, tokens: int, name: str = "r", now_ns: int = 1) -> Decided:
    effects = machine.handle(now_ns, Arrived(RequestId(name), tokens, 10**15))
    machine.validate()
    return next(effect for effect in effects if isinstance(effect, Decided))


def begin(machine: Router, name: str, now_ns: int = 1, kv_bytes: int = 0) -> None:
    machine.handle(now_ns, CreditGranted(RequestId(name), 1, "d0", kv_bytes))
    machine.handle(now_ns, PrefillBound(RequestId(name), 1, "p0"))


def learn_kv(machine: Router, row: int = 1000) -> None:
    for tokens in (10, 5000):
        decide(machine, tokens, f"kv{tokens}")
        begin(machine, f"kv{tokens}", kv_bytes=row * tokens)
        machine.handle(1, PrefillDone(RequestId(f"kv{tokens}"), 1))


@pytest.mark.parametrize("kind", NAMES)
def test_a_fresh_system_decides_by_the_threshold_and_says_what_it_lacks(kind: str) -> None:
    machine = up(kind, home=None, far=None)
    long, short = decide(machine, 1001, "a"), decide(machine, 1000, "b")
    fixed = {"local": (HOME, HOME), "remote": (FAR, FAR)}.get(kind, (FAR, HOME))
    assert (long.cluster, short.cluster) == fixed
    if kind in ("threshold", "local", "remote"):
        assert (long.unknown, short.unknown) == ((), ()), "it lacks nothing"
        words = {"threshold": ("long", "short"), "local": ("local", "local"), "remote": ("remote", "remote")}
        assert (long.reason, short.reason) == words[kind]
    else:
        assert (long.reason, short.reason) == ("long", "short")
        assert long.unknown == short.unknown == ("speed:home", "speed:far", "kv_bytes")


def test_one_speed_that_is_lacking_is_enough() -> None:
    decided = decide(up("ours", home=None), 1001)
    assert (decided.cluster, decided.reason, decided.unknown) == (FAR, "long", ("speed:home", "kv_bytes"))
    decided = decide(up("ours", far=Curve([(1, 1), (10, 1)])), 1001)
    assert decided.unknown == ("speed:far", "kv_bytes"), "known of other lengths only"


def test_bytes_that_are_not_known_are_told_and_not_held_against_the_link() -> None:
    machine = up("ours")
    assert decide(machine, 500, "a").unknown == ("kv_bytes",)
    learn_kv(machine)
    assert decide(machine, 500, "b").unknown == ()


def test_a_short_one_goes_to_a_node_to_spare_that_is_sooner() -> None:
    decided = decide(up("ours"), 500)
    assert (decided.cluster, decided.reason) == (FAR, "spare")
    here, there = decided.scores
    assert (here, there) == (0.5, pytest.approx(0.125 + 0.02, rel=0.01))


def test_a_long_one_stays_where_an_idle_node_is_sooner() -> None:
    machine = up("ours", home=FAST, far=SLOW)
    assert (decide(machine, 2000, "a").reason, decide(machine, 2000, "b").reason) == ("sooner_here", "long")


def test_a_thin_link_keeps_a_long_one_at_home() -> None:
    machine = up("ours")
    learn_kv(machine, row=10**6)  # 2 GB over a Gbit/s
    decided = decide(machine, 2000)
    assert (decided.cluster, decided.reason) == (HOME, "sooner_here")


def test_what_others_do_counts() -> None:
    machine = up("ours")
    machine.handle(1, SourceSeen(FAR, 1, 3, 1, 100_000, curve=FAST, rest_waiting=30_000, rest_running=5000))
    assert decide(machine, 500).reason == "short"


def test_a_retry_says_retry_and_avoids_what_failed() -> None:
    machine = up("ours")
    assert decide(machine, 5000).cluster == FAR
    effects = machine.handle(2, LegFailed(RequestId("r"), 1, "prefill", "node_lost", ""))
    again = next(effect for effect in effects if isinstance(effect, Decided))
    assert (again.cluster, again.reason, again.after) == (HOME, "retry", "prefill:node_lost")
    machine.validate()


def test_without_a_node_at_home_the_other_cluster_prefills() -> None:
    machine = up("ours")
    machine.handle(1, SourceSeen(HOME, 0, 0, 0, 0, "gone"))
    decided = decide(machine, 10)
    assert (decided.cluster, decided.reason) == (FAR, "no_home_node")


@pytest.mark.parametrize("kind", NAMES)
def test_every_policy_decides_live(kind: str) -> None:
    machine = up(kind)
    learn_kv(machine)
    words = {decide(machine, tokens, f"r{tokens}").reason for tokens in (10, 900, 1001, 1002, 1003, 6000)}
    assert words
    assert all(word.isidentifier() for word in words)


def test_the_ledger_is_the_policy_s_own_view() -> None:
    machine = up("ours")
    learn_kv(machine)
    decide(machine, 5000, "a")
    begin(machine, "a")
    home, far = machine.backlogs
    assert (home.name, far.name, home.order) == (ClusterName("home"), ClusterName("far"), policy_of("ours", 1000).order)
    assert (len(far), len(far.ends), far.links[0].unsent_bytes) == (0, 1, 5_000_000)


def busy(machine: Router) -> None:
    """A short prompt computes far away, another at home, and `third` waits at home for its node, with credit."""
    learn_kv(machine)
    for name, cluster in (("first", FAR), ("second", HOME), ("third", HOME)):
        assert decide(machine, 900, name, now_ns=10).cluster == cluster
        machine.handle(10, CreditGranted(RequestId(name), 1, "d0"))
        if name != "third":
            machine.handle(10, PrefillBound(RequestId(name), 1, "p0"))
    machine.validate()


def test_an_idle_node_takes_what_waits_elsewhere() -> None:
    machine = up("ours")
    busy(machine)
    effects = machine.handle(20, PrefillDone(RequestId("first"), 1))
    machine.validate()
    assert [type(effect) for effect in effects] == [CancelPrefill, ReleaseCredit, Decided, AskCredit]
    moved = next(effect for effect in effects if isinstance(effect, Decided))
    assert (moved.request, moved.attempt, moved.reason, moved.cluster) == ("third", 2, "claimed", FAR)
    node = next(life.place.node for life in machine.requests.values() if life.request == "third" and life.place)
    assert moved.node == node, "its decode node stays"
    assert [len(backlog) for backlog in machine.backlogs] == [0, 1]
    assert machine.handle(21, PrefillBound(RequestId("third"), 1, "p0")) == [], "the head that it left was late"


@pytest.mark.parametrize("kind", ["threshold", "fastest", "priced"])
def test_policies_that_do_not_move_leave_it(kind: str) -> None:
    machine = up(kind)
    learn_kv(machine)
    for name in ("a", "b", "c"):
        decide(machine, 900, name, now_ns=10)
    before = [life.stage for life in machine.requests.values()]
    machine.handle(20, SourceSeen(FAR, 8, 0, 0, 100_000, curve=FAST))
    assert [life.stage for life in machine.requests.values()] == before


def test_times_that_are_not_known_move_nothing() -> None:
    machine = up("ours", far=None)
    learn_kv(machine)
    for name in ("a", "b", "c"):
        assert decide(machine, 900, name, now_ns=10).cluster == HOME
    machine.handle(20, SourceSeen(FAR, 8, 0, 0, 100_000))
    assert len(machine.backlogs[0]) == 3
    machine.handle(20, SourceSeen(FAR, 8, 0, 0, 100_000, curve=FAST))
    assert len(machine.backlogs[0]) == 1, "the first is as good as started"


def test_moves_are_bounded_and_are_no_failures() -> None:
    machine = up("ours")
    learn_kv(machine)
    for name in ("first", "second"):
        decide(machine, 900, name, now_ns=10)
        begin(machine, name, now_ns=10)
    name, at, moved = RequestId("third"), 10, []
    decide(machine, 900, name, now_ns=at)
    for turn in range(3 * MOVES):  # now one cluster is idle and fast, now the other
        at += 10
        here, there = (HOME, FAR) if turn % 2 else (FAR, HOME)
        machine.handle(at, SourceSeen(there, 1, 0, 1, 100_000, curve=SLOW, rest_running=900))
        effects = machine.handle(at, SourceSeen(here, 9, 0, 0, 100_000, curve=FAST))
        moved += [effect.cluster for effect in effects if isinstance(effect, Decided)]
        machine.validate()
    assert len(moved) == MOVES
    for failure in range(4):
        effects = machine.handle(at, LegFailed(name, 1 + MOVES + failure, "credit", "unreachable", "it is gone"))
        machine.handle(at, DecodeSeen(NodeName(f"d{failure + 2}"), True, 0, 100_000))
    refused = next(effect for effect in effects if isinstance(effect, Refuse))
    assert "4 attempts failed" in refused.message
