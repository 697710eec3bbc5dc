"""Decode nodes that hold most of a prompt compute the short rest themselves, where that disturbs nobody much."""

from __future__ import annotations

import pytest

from prfaas.core.ids import NodeName, RequestId
from prfaas.core.routing.cached import Cached
from prfaas.core.routing.catalog import NAMES
from prfaas.core.routing.effects import AskCredit, Decided, Ended, StartDecode
from prfaas.core.routing.events import Answered, Arrived, FirstToken, LegFailed
from prfaas.core.routing.router import Router, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeSeen, SourceSeen
from prfaas.testing.scenario import FAR, HOME, router, world_up

REMAINDER = 512
D0, D1 = NodeName("d0"), NodeName("d1")


def up(remainder: int = REMAINDER, kind: str = "threshold", whole_limit: int = 8000) -> Router:
    machine = router(1000, whole_limit, kind, remainder)
    for event in world_up():
        machine.handle(0, event)
    return machine


def decide(machine: Router, tokens: int, cached: Cached, name: str = "r", stays: str = "") -> Decided:
    effects = machine.handle(1, Arrived(RequestId(name), tokens, 10**15, stays, cached))
    machine.validate()
    return next(effect for effect in effects if isinstance(effect, Decided))


def on(node: NodeName, tokens: int, **clusters: int) -> Cached:
    return Cached({HOME: clusters.get("home", 0), FAR: clusters.get("far", 0)}, decoders={node: tokens})


@pytest.mark.parametrize("kind", NAMES)
def test_who_holds_all_but_a_short_rest_computes_it_and_nothing_is_handed_over(kind: str) -> None:
    machine = up(kind=kind)
    effects = machine.handle(1, Arrived(RequestId("r"), 6000, 10**15, "", on(D1, 5952)))
    decided, start = (effect for effect in effects if isinstance(effect, Decided | StartDecode))
    assert isinstance(decided, Decided)
    assert (decided.route, decided.node, decided.reason, decided.cached) == ("local", D1, "held", 5952)
    assert start == StartDecode(RequestId("r"), 1, D1, handover=False)
    assert not any(isinstance(effect, AskCredit) for effect in effects)
    machine.handle(2, FirstToken(RequestId("r"), 1))
    assert any(isinstance(effect, Ended) for effect in machine.handle(3, Answered(RequestId("r"), 1)))
    machine.validate()
    assert machine.view.assigned == {}


@pytest.mark.parametrize("kind", NAMES)
def test_it_is_off_unless_it_is_asked_for(kind: str) -> None:
    assert decide(up(0, kind), 6000, on(D1, 5952)).reason != "held"
    assert RouterPolicy(Threshold(1), 1, 1).remainder == 0


@pytest.mark.parametrize(
    ("tokens", "held", "expected"),
    [
        (6000, 6000 - 512, "held"),
        (6000, 6000 - 513, "long"),
        (800, 400, "held"),
        (800, 399, "short"),  # most of it would be computed there
        (801, 400, "short"),
        (2, 1, "held"),
        (1, 1, "single"),
        (8000, 7936, "held"),
        (8001, 7936, "long"),  # were it gone by then, the node would compute more than it may
    ],
)
def test_short_is_short(tokens: int, held: int, expected: str) -> None:
    assert decide(up(), tokens, on(D1, held)).reason == expected


def test_a_prefill_place_that_has_more_of_it_computes_it() -> None:
    assert decide(up(), 1500, on(D1, 1408, home=1472)).reason == "short"
    assert decide(up(), 6000, on(D1, 5888, far=5952)).reason == "long"
    assert decide(up(), 6000, on(D1, 5952, far=5952, home=5952)).reason == "held", "as much: nothing is handed over"
    machine = up()
    machine.handle(0, SourceSeen(HOME, 0, 0, 0, 0))
    assert decide(machine, 1500, on(D1, 1408, home=1472)).reason == "held", "what nobody can use now does not count"


@pytest.mark.parametrize(
    ("busy", "other", "expected"),
    [
        (0, 0, "held"),
        (1, 0, "short"),
        (2, 1, "short"),
        (4, 4, "held"),
        (5, 4, "held"),
        (6, 4, "short"),
        (8, 4, "short"),
    ],
)
def test_who_has_much_more_to_do_is_not_chosen_for_its_cache(busy: int, other: int, expected: str) -> None:
    machine = up()
    for node, running in ((D0, other), (D1, busy)):
        machine.handle(0, DecodeSeen(node, True, running, 100_000))
    assert decide(machine, 1000, on(D1, 960)).reason == expected


def test_what_was_just_given_to_a_node_counts_before_it_is_reported() -> None:
    machine = up()
    assert [decide(machine, 1000, on(D1, 960), f"r{at}").reason for at in range(2)] == ["held", "short"]


def test_of_several_the_one_that_holds_the_most_then_the_one_with_less_to_do() -> None:
    machine = up()
    assert decide(machine, 1000, Cached(decoders={D0: 896, D1: 960})).node == D1
    machine = up()
    for node, running in ((D0, 5), (D1, 4)):
        machine.handle(0, DecodeSeen(node, True, running, 100_000))
    assert decide(machine, 1000, Cached(decoders={D0: 960, D1: 960})).node == D1


def test_nodes_that_are_not_there_hold_nothing() -> None:
    machine = up()
    assert decide(machine, 1000, on(NodeName("gone"), 960), "a").reason == "short"
    machine.handle(0, DecodeSeen(D1, False, 0, 100_000))
    assert decide(machine, 1000, on(D1, 960), "b").reason == "short"
    machine.handle(0, DecodeSeen(D1, True, 0, 999))
    assert decide(machine, 1000, on(D1, 960), "c").reason == "short"


def test_one_that_failed_it_is_not_asked_again() -> None:
    machine = up()
    assert decide(machine, 1000, on(D1, 960)).reason == "held"
    effects = machine.handle(2, LegFailed(RequestId("r"), 1, "decode", "engine_failed", "gone"))
    again = next(effect for effect in effects if isinstance(effect, Decided))
    assert (again.node, again.reason, again.after) == (D0, "short", "decode:engine_failed")
    machine.validate()


def test_what_must_not_be_handed_over_keeps_its_reason() -> None:
    assert decide(up(), 1000, on(D1, 960), stays="echo").reason == "echo"


def test_decode_nodes_that_are_alone_prefer_the_one_that_has_it_too() -> None:
    machine = up(kind="ours")
    machine.handle(0, SourceSeen(HOME, 0, 0, 0, 0, nodes=0))
    decided = decide(machine, 900, on(D1, 832, home=832))
    assert (decided.node, decided.reason, decided.cached) == (D1, "held", 832)
