"""Where requests go, and the word that says why."""

from __future__ import annotations

import pytest

from prfaas.core.ids import NodeName, RequestId
from prfaas.core.routing.effects import Decided, Refuse
from prfaas.core.routing.events import Arrived, LegFailed
from prfaas.core.routing.router import Router
from prfaas.core.routing.view import DecodeSeen, SourceSeen
from prfaas.testing.scenario import FAR, HOME, router, world_up


def up() -> Router:
    machine = router(threshold=1000, whole_limit=8000)
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
