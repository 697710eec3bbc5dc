"""Decisions by what is left to compute, where something is cached."""

from __future__ import annotations

import pytest

from prfaas.core.ids import ClusterName, NodeName, RequestId, TransferId
from prfaas.core.routing.cached import NOTHING, Cached
from prfaas.core.routing.catalog import NAMES
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import AskCredit, Decided, StartDecode
from prfaas.core.routing.events import Arrived, LegFailed
from prfaas.core.routing.queue import Dispatch, NodeSeen, PrefillQueue, Submit
from prfaas.core.routing.router import Router
from prfaas.core.routing.view import DecodeSeen, SourceSeen
from prfaas.testing.scenario import FAR, HOME, MS, router, world_up

LINEAR = Curve([(1, MS), (100_000, 100_000 * MS)])
"""A millisecond a token."""


def up(kind: str, curve: Curve | None = LINEAR) -> Router:
    machine = router(threshold=1000, whole_limit=8000, kind=kind)
    for event in world_up():
        machine.handle(0, event)
    for cluster in (FAR, HOME):
        machine.handle(0, SourceSeen(cluster, 1, 0, 0, 100_000, curve=curve))
    return machine


def decide(machine: Router, tokens: int, cached: Cached = NOTHING, name: str = "r") -> Decided:
    effects = machine.handle(1, Arrived(RequestId(name), tokens, 10**15, "", cached))
    machine.validate()
    return next(effect for effect in effects if isinstance(effect, Decided))


def at_home(tokens: int) -> Cached:
    return Cached({HOME: tokens})


@pytest.mark.parametrize("curve", [LINEAR, None])
@pytest.mark.parametrize("kind", ["threshold", "paper", "ours", "pull"])
def test_a_long_prompt_with_little_left_is_short(kind: str, curve: Curve | None) -> None:
    machine = up(kind, curve)
    left = decide(machine, 6000, at_home(5056))
    assert (left.cluster, left.reason, left.cached) == (HOME, "short", 5056)
    assert decide(up(kind, curve), 6000).reason in ("long", "sooner_here")
    assert decide(up(kind, curve), 6000, at_home(4480)).reason in ("long", "sooner_here")


@pytest.mark.parametrize("kind", ["threshold", "paper"])
def test_a_prefix_elsewhere_is_not_copied_and_so_does_not_shorten_what_home_computes(kind: str) -> None:
    decided = decide(up(kind), 6000, Cached({FAR: 5952}))
    assert (decided.cluster, decided.reason, decided.cached) == (FAR, "long", 5952)


def test_who_has_it_is_sooner() -> None:
    machine = up("fastest")
    assert decide(machine, 6000, at_home(3200)).cluster == HOME
    assert decide(up("fastest"), 6000, Cached({HOME: 1280, FAR: 5952})).cluster == FAR


def test_the_last_token_is_always_computed() -> None:
    machine = up("ours")
    assert decide(machine, 128, at_home(128)).cached == 127


@pytest.mark.parametrize("kind", NAMES)
def test_a_cache_that_is_not_known_is_told_where_it_counts(kind: str) -> None:
    decided = decide(up(kind), 6000, Cached(unknown=(HOME, FAR)))
    told = [signal for signal in decided.unknown if signal.startswith("cache:")]
    wanted = {"local": [], "remote": [], "threshold": ["cache:home"]}
    assert told == wanted.get(kind, ["cache:home", "cache:far"])
    assert decided.cached == 0


def test_another_try_elsewhere_counts_what_is_there() -> None:
    machine = up("threshold")
    decide(machine, 6000, Cached({FAR: 64, HOME: 128}))
    effects = machine.handle(2, LegFailed(RequestId("r"), 1, "prefill", "node_lost", "gone"))
    again = next(effect for effect in effects if isinstance(effect, Decided))
    assert (again.cluster, again.cached) == (HOME, 128)


def test_of_equal_decode_nodes_the_one_that_has_it() -> None:
    machine = up("threshold")
    held = Cached(rows={NodeName("d1"): 64})
    asked = machine.handle(1, Arrived(RequestId("a"), 500, 10**15, "", held))
    assert [one.node for one in asked if isinstance(one, AskCredit)] == ["d1"]
    asked = machine.handle(1, Arrived(RequestId("b"), 500, 10**15, "", held))
    assert [one.node for one in asked if isinstance(one, AskCredit)] == ["d0"], "who has less to do, first of all"


def test_decode_nodes_that_are_alone_compute_what_is_left() -> None:
    machine = up("ours")
    machine.handle(0, SourceSeen(HOME, 0, 0, 0, 0, nodes=0))
    machine.handle(0, DecodeSeen(NodeName("d0"), True, 0, 100_000))
    held = Cached({HOME: 5120}, decoders={NodeName("d0"): 5120})
    effects = machine.handle(1, Arrived(RequestId("a"), 6000, 10**15, "", held))
    decided = next(effect for effect in effects if isinstance(effect, Decided))
    assert (decided.node, decided.reason, decided.cached) == ("d0", "short", 5120)
    assert any(isinstance(effect, StartDecode) and not effect.handover for effect in effects)


def test_of_decode_nodes_rows_count_for_what_lands_and_what_can_be_resumed_for_what_is_computed() -> None:
    held = Cached(decoders={NodeName("d0"): 64}, rows={NodeName("d0"): 64, NodeName("d1"): 128})
    asked = up("threshold").handle(1, Arrived(RequestId("a"), 500, 10**15, "", held))
    assert [one.node for one in asked if isinstance(one, AskCredit)] == ["d1"]
    machine = up("threshold")
    machine.handle(0, SourceSeen(HOME, 0, 0, 0, 0, nodes=0))
    held = Cached(decoders={NodeName("d1"): 64}, rows={NodeName("d0"): 128, NodeName("d1"): 64})
    asked = machine.handle(1, Arrived(RequestId("a"), 500, 10**15, "", held))
    assert [(one.node, one.cached) for one in asked if isinstance(one, Decided)] == [("d1", 64)]
    assert any(isinstance(effect, StartDecode) and not effect.handover for effect in asked)


def test_times_of_the_rest() -> None:
    """Of a + b L + c L^2 it is right but for a part of a, whatever comes before."""

    def cost(tokens: int) -> int:
        return 5000 + 30 * tokens + tokens * tokens // 100

    curve = Curve([(tokens, cost(tokens)) for tokens in range(100, 10_100, 100)])
    for tokens, cached in [(200, 100), (5000, 100), (5000, 4900), (10_000, 6400)]:
        rest = curve.rest(tokens, cached)
        new = tokens - cached
        exact = 5000 + 30 * new + (new * new + 2 * new * cached) // 100
        assert rest is not None
        assert exact - 5000 <= rest <= exact
    assert curve.rest(5000, 0) == curve.at(5000)
    assert curve.rest(20_000, 10_000) is None, "what is not known of all of it is not known of the rest"
    assert curve.rest(150, 64) == curve.at(150), "nothing less is known"


def test_a_queue_gives_a_job_to_who_it_prefers_unless_that_one_has_much_more_to_do() -> None:
    queue = PrefillQueue(8)
    for name in ("p0", "p1", "p2"):
        queue.handle(0, NodeSeen(NodeName(name), True, 1, 4, 1000))  # type: ignore[arg-type]
    given = []
    for number in range(4):
        effects = queue.handle(0, Submit(TransferId(f"t{number}"), 100, 10**12, (NodeName("p1"),)))
        given += [effect.node for effect in effects if isinstance(effect, Dispatch)]
    assert given == ["p1", "p1", "p0", "p2"]
    queue.validate()


def test_names_of_clusters_that_are_no_source_do_no_harm() -> None:
    assert decide(up("ours"), 500, Cached({ClusterName("elsewhere"): 448})).cached == 0
