"""Where requests go, and the word that says why."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.machine import Disarm
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    ReleaseCredit,
    StartPrefill,
)
from prfaas.core.routing.events import Arrived, ClientGone, CreditGranted, FirstToken, LegFailed, PrefillBound
from prfaas.core.routing.router import Router, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeLost, DecodeSeen, Source, SourceSeen
from prfaas.testing.scenario import FAR, HOME, router, world_up


def up(kind: str = "threshold") -> Router:
    machine = router(threshold=1000, whole_limit=8000, kind=kind)
    for event in world_up():
        machine.handle(0, event)
    return machine


def decide(machine: Router, tokens: int, name: str = "r", stays: str = "") -> Decided | Refuse:
    effects = machine.handle(1, Arrived(RequestId(name), tokens, 10**12, stays))
    return next(effect for effect in effects if isinstance(effect, Decided | Refuse))


@pytest.mark.parametrize(
    ("tokens", "route", "cluster", "reason"),
    [
        (1, "local", HOME, "single"),
        (2, "local", HOME, "short"),
        (1000, "local", HOME, "short"),
        (1001, "remote", FAR, "long"),
        (100_000, "remote", FAR, "long"),
    ],
)
def test_threshold_is_strict(tokens: int, route: str, cluster: str, reason: str) -> None:
    decided = decide(up(), tokens)
    assert isinstance(decided, Decided)
    assert (decided.route, decided.cluster, decided.reason, decided.threshold) == (route, cluster, reason, 1000)


def test_unreachable_prefill_cluster_is_a_visible_fallback() -> None:
    machine = up()
    machine.handle(1, SourceSeen(FAR, 0, 0, 0, 0, "connection refused"))
    decided = decide(machine, 5000)
    assert isinstance(decided, Decided)
    assert (decided.route, decided.cluster, decided.reason) == ("local", HOME, "unreachable")


@pytest.mark.parametrize("kind", ["threshold", "ours", "paper", "pull", "local", "fastest"])
def test_a_cluster_of_decode_nodes_alone_computes_what_is_short(kind: str) -> None:
    """There it is no trouble that nobody else can: the reason is the length, or that the others are away."""
    machine = up(kind)
    machine.handle(1, SourceSeen(HOME, 0, 0, 0, 0, "it has no prefill node", nodes=0))
    if kind != "fastest":  # which asks where it would be done first, and knows no other way than to prefill
        decided = decide(machine, 900)
        assert isinstance(decided, Decided)
        assert (decided.route, decided.reason) == ("local", "local" if kind == "local" else "short")
    machine.handle(1, SourceSeen(FAR, 0, 0, 0, 0, "connection refused"))
    for tokens, reason in ((900, "short"), (5000, "unreachable")):
        decided = decide(machine, tokens, f"{tokens}")
        assert isinstance(decided, Decided)
        assert (decided.route, decided.reason) == ("local", "local" if kind == "local" else reason)


def test_without_prefill_nodes_the_decode_node_computes_what_it_may() -> None:
    machine = up()
    machine.handle(1, SourceSeen(FAR, 0, 0, 0, 0, "gone"))
    machine.handle(1, SourceSeen(HOME, 0, 0, 0, 0, "gone"))
    decided = decide(machine, 8000)
    assert isinstance(decided, Decided)
    assert (decided.route, decided.reason) == ("local", "no_prefill_node")
    refused = decide(machine, 8001, "r2")
    assert isinstance(refused, Refuse)
    assert (refused.status, refused.code) == (503, "no_prefill_node")
    assert "8001" in refused.message
    assert "8000" in refused.message


def test_decode_nodes_share_the_work() -> None:
    machine = up()
    nodes = []
    for i in range(4):
        decided = decide(machine, 10, f"r{i}")
        assert isinstance(decided, Decided)
        nodes.append(decided.node)
    assert nodes == ["d0", "d1", "d0", "d1"]


def test_clusters_share_the_work_before_they_report_it() -> None:
    """A burst does not all go where a report, which is older than the burst, said that nothing was to do."""
    other = ClusterName("other")
    policy = RouterPolicy(Threshold(1000), 8000, 3, "threshold")
    sources = [Source(name, LinkName(f"{name}->{HOME}"), home=name == HOME) for name in (FAR, other, HOME)]
    machine = Router(HOME, tuple(sources), policy)
    for event in (*world_up(), SourceSeen(other, 2, 0, 0, 100_000), SourceSeen(FAR, 1, 0, 0, 100_000)):
        machine.handle(0, event)

    def cluster(name: str) -> str:
        decided = decide(machine, 5000, name)
        assert isinstance(decided, Decided)
        return str(decided.cluster)

    assert [cluster(f"r{at}") for at in range(6)] == [FAR, other, other, FAR, other, other]
    machine.handle(2, LegFailed(RequestId("r0"), 1, "credit", "no_landing_room", "none", fatal=True, status=503))
    machine.handle(2, ClientGone(RequestId("r3")))
    machine.validate()
    assert cluster("r6") == FAR
    machine.handle(3, SourceSeen(other, 2, 0, 0, 100_000))
    machine.handle(3, SourceSeen(FAR, 1, 3, 1, 100_000))  # others sent it something too
    assert [cluster(f"r{at}") for at in range(7, 10)] == [other] * 3


def test_no_decode_node_and_too_long_are_told_apart() -> None:
    machine = up()
    refused = decide(machine, 100_001)
    assert isinstance(refused, Refuse)
    assert (refused.status, refused.code) == (413, "context_length_exceeded")
    for name in ("d0", "d1"):
        machine.handle(1, DecodeSeen(NodeName(name), False, 0, 0))
    refused = decide(machine, 10, "r2")
    assert isinstance(refused, Refuse)
    assert (refused.status, refused.code) == (503, "no_decode_node")


def test_a_lost_transfer_blames_the_source_and_stays_at_home() -> None:
    machine = up()
    decide(machine, 5000)
    effects = machine.handle(2, LegFailed(RequestId("r"), 1, "credit", "unreachable", "d0 is dead"))
    again = next(effect for effect in effects if isinstance(effect, Decided))
    assert (again.attempt, again.node, again.cluster, again.after) == (2, "d1", FAR, "credit:unreachable")


def test_late_news_of_an_earlier_attempt_changes_nothing() -> None:
    machine = up()
    decide(machine, 5000)
    machine.handle(2, LegFailed(RequestId("r"), 1, "credit", "unreachable", ""))
    assert machine.handle(3, LegFailed(RequestId("r"), 1, "credit", "unreachable", "again")) == []
    assert machine.handle(3, LegFailed(RequestId("other"), 1, "decode", "x", "")) == []


def kinds(effects: Sequence[object]) -> list[type]:
    return [type(effect) for effect in effects]


def test_a_decode_node_that_is_gone_gives_its_requests_back_at_once() -> None:
    machine = up()
    request = RequestId("r")
    for advance in range(4):
        machine = up()
        decide(machine, 5000)
        for event in (CreditGranted(request, 1, "d0"), PrefillBound(request, 1, "p"), FirstToken(request, 1))[:advance]:
            machine.handle(2, event)
        effects = machine.handle(3, DecodeLost(NodeName("d0"), None, "its lease ended"))
        closed = {
            0: [ReleaseCredit, Decided, AskCredit],
            1: [CancelPrefill, ReleaseCredit, Decided, AskCredit],
            2: [CancelPrefill, CancelDecode, ReleaseCredit, Decided, AskCredit],
            3: [CancelPrefill, CancelDecode, Disarm, Ended],
        }[advance]
        assert kinds(effects) == closed
        assert "d0" not in machine.view.decoders
        assert machine.view.assigned == ({"d1": 1} if advance < 3 else {})
        machine.validate()


def test_a_decode_node_that_restarted_loses_only_calls_to_the_old_incarnation() -> None:
    machine = up()
    first, second, third = RequestId("a"), RequestId("b"), RequestId("c")
    for at, request in ((10, first), (20, second), (20, third)):
        machine.handle(at, Arrived(request, 5000, 10**12))
    machine.handle(11, CreditGranted(first, 1, "d0"))
    assert [life.place.node for life in machine.requests.values() if life.place] == ["d0", "d1", "d0"]
    assert machine.handle(30, DecodeLost(NodeName("d0"), 19, "restarted")) == [], "no call is open, or it began later"
    effects = machine.handle(30, DecodeLost(NodeName("d0"), 20, "restarted"))
    assert {effect.request for effect in effects if isinstance(effect, Decided)} == {third}
    assert "d0" in machine.view.decoders
    assert [type(effect) for effect in machine.handle(31, PrefillBound(first, 1, "p"))], "the new one is called"


def test_a_request_that_loses_its_only_node_is_answered_by_one_clear_error() -> None:
    machine = up()
    machine.handle(1, DecodeLost(NodeName("d1"), None, "left"))
    decide(machine, 5000)
    machine.handle(2, CreditGranted(RequestId("r"), 1, "d0"))
    effects = machine.handle(3, DecodeLost(NodeName("d0"), None, "its lease ended"))
    refused = next(effect for effect in effects if isinstance(effect, Refuse))
    assert (refused.status, refused.code) == (503, "no_decode_node")
    assert "its lease ended" in refused.message
    assert StartPrefill not in kinds(effects)
