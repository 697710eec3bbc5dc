"""One conversion at a time, seen through; at rest under noise; and everything said."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.balance.balancer import BalancePolicy, Balancer
from prfaas.core.balance.effects import Abandoned, Convert, Drain, Judged, Resume, Skipped
from prfaas.core.balance.events import BalanceEvent, Converted, Drained, Failed, Look, Overdue, Staffed
from prfaas.core.balance.measured import MINUTE_NS, Measured, Span
from prfaas.core.balance.rivals import Ratio
from prfaas.core.balance.rules import Limits, Predictive
from prfaas.core.errors import InvariantError
from prfaas.core.ids import NodeName
from prfaas.core.machine import Arm, Disarm

from .rig import HARDWARE, LINK_BPS, REMOTES, Cluster, names

LONG_PROMPTS, LONG_ANSWERS = (30_000, 400), (4_000, 1_800)
SHORT_SPAN = Span(slots=5, bins=48)


def busy(prompts: int, answer: int, policy: BalancePolicy | None = None) -> Balancer:
    """Three nodes prefill, five decode; a thousand requests were seen in the first minute, prompts up to twice
    `prompts`."""
    measured = Measured((LINK_BPS,), 1000.0)
    balancer = Balancer(policy or BalancePolicy(), HARDWARE, measured)
    for at in range(1000):
        tokens = 1 + at * prompts // 500
        measured.arrived(at * MINUTE_NS // 1000, tokens, tokens)
        measured.ended(at * MINUTE_NS // 1000, answer)
    assert balancer.handle(0, names(3, 5)) == [Arm("look", 5 * MINUTE_NS, Look())]
    return balancer


def test_one_conversion_from_look_to_work() -> None:
    balancer = busy(*LONG_PROMPTS)
    node = NodeName("d4")
    found, drain, overdue, again = balancer.handle(5 * MINUTE_NS, Look())
    assert isinstance(found, Judged)
    assert (found.why, found.step, found.n_p, found.n_d) == ("better", 1, 3, 5)
    assert found.rate_rps < found.step_rps <= found.best_rps
    assert found.gain > found.need >= 0.02
    assert drain == Drain(node, "decode")
    assert overdue == Arm("overdue", 15 * MINUTE_NS, Overdue(node))
    assert again == Arm("look", 10 * MINUTE_NS, Look())
    assert (len(balancer.prefill), len(balancer.decode)) == (3, 4)
    assert balancer.handle(6 * MINUTE_NS, Converted(node)) == []  # it still drains
    convert, _ = balancer.handle(6 * MINUTE_NS, Drained(node))
    assert convert == Convert(node, "prefill")
    assert balancer.handle(6 * MINUTE_NS, Drained(node)) == []
    assert balancer.handle(10 * MINUTE_NS, Look())[0] == Skipped("under_way", 3, 4, 1000)
    assert balancer.handle(12 * MINUTE_NS, Converted(node)) == [Disarm("overdue")]
    assert balancer.prefill[-1] == node
    assert balancer.conversion_ns == 7 * MINUTE_NS
    balancer.validate()


def test_who_came_last_goes_first() -> None:
    balancer = busy(*LONG_ANSWERS)
    assert Drain(NodeName("p2"), "prefill") in balancer.handle(5 * MINUTE_NS, Look())


def test_a_node_that_cannot_drain_stays_what_it_is() -> None:
    balancer = busy(*LONG_PROMPTS)
    balancer.handle(5 * MINUTE_NS, Look())
    node = NodeName("d4")
    assert balancer.handle(15 * MINUTE_NS, Overdue(node)) == [Resume(node, "decode", "it did not drain in time")]
    assert (len(balancer.prefill), len(balancer.decode)) == (3, 5)
    assert balancer.handle(16 * MINUTE_NS, Drained(node)) == []


def test_a_node_that_cannot_convert_is_not_counted_on() -> None:
    balancer = busy(*LONG_PROMPTS)
    balancer.handle(5 * MINUTE_NS, Look())
    node = NodeName("d4")
    balancer.handle(6 * MINUTE_NS, Drained(node))
    said = balancer.handle(16 * MINUTE_NS, Overdue(node))
    assert said == [Abandoned(node, "prefill", "it did not convert in time")]
    assert (len(balancer.prefill), len(balancer.decode)) == (3, 4)
    assert balancer.handle(17 * MINUTE_NS, Converted(node)) == []


@pytest.mark.parametrize("drained", [False, True])
def test_a_node_that_dies_on_the_way_ends_the_conversion(drained: bool) -> None:
    balancer = busy(*LONG_PROMPTS)
    balancer.handle(5 * MINUTE_NS, Look())
    node = NodeName("d4")
    if drained:
        balancer.handle(6 * MINUTE_NS, Drained(node))
    said = balancer.handle(7 * MINUTE_NS, Failed(node, "gone"))
    assert said == [Abandoned(node, "prefill", "gone"), Disarm("overdue")]
    assert balancer.under_way is None
    assert balancer.handle(8 * MINUTE_NS, Failed(node, "gone")) == []


def test_who_converts_is_not_counted_by_a_list_that_still_has_it() -> None:
    balancer = busy(*LONG_PROMPTS)
    balancer.handle(5 * MINUTE_NS, Look())
    assert balancer.handle(6 * MINUTE_NS, names(3, 5)) == []
    assert NodeName("d4") not in balancer.decode
    balancer.validate()


def test_a_list_of_other_remotes_than_the_hardware_is_a_bug() -> None:
    balancer = busy(*LONG_PROMPTS)
    with pytest.raises(InvariantError, match="2 remotes"):
        balancer.handle(1, Staffed((), (), (1, 2)))


def test_nothing_is_judged_from_few_requests() -> None:
    balancer = busy(*LONG_PROMPTS, BalancePolicy(least_requests=1001))
    assert balancer.handle(5 * MINUTE_NS, Look())[0] == Skipped("few_requests", 3, 5, 1000)
    assert busy(*LONG_PROMPTS).handle(60 * MINUTE_NS, Look())[0] == Skipped("few_requests", 3, 5, 0)


def test_nothing_is_judged_where_no_role_can_give() -> None:
    balancer = busy(*LONG_PROMPTS, BalancePolicy(limits=Limits(3, 5)))
    assert isinstance(balancer.handle(5 * MINUTE_NS, Look())[0], Skipped)


@pytest.mark.parametrize("seed", range(3))
def test_steady_noisy_traffic_moves_nothing_any_more(seed: int) -> None:
    """Few requests, so much noise: after it came to its place it stays; the rule without a margin does not."""
    cluster = Cluster(BalancePolicy(), span=SHORT_SPAN)
    cluster.minutes(0, 120, random.Random(seed), 1.2, 18_000, 900)
    assert all(a == b for a, b in pairwise(cluster.steps))
    bare = Cluster(BalancePolicy(Ratio()), span=SHORT_SPAN)
    bare.minutes(0, 120, random.Random(seed), 1.2, 18_000, 900)
    assert sum(a != b for a, b in pairwise(bare.steps)) > 3


def test_it_follows_a_mix_that_changes_a_step_at_a_time() -> None:
    cluster, chance = Cluster(BalancePolicy(), span=SHORT_SPAN), random.Random(1)
    cluster.minutes(0, 60, chance, 1.5, *LONG_PROMPTS)
    up = len(cluster.balancer.prefill)
    cluster.minutes(60, 60, chance, 1.5, *LONG_ANSWERS)
    down = len(cluster.balancer.prefill)
    assert up > 3 > down
    assert set(cluster.steps[: up - 3]) == {1}
    assert set(cluster.steps[up - 3 :]) == {-1}
    begun = [at for at, one in cluster.log if isinstance(one, Drain)]
    assert all(b - a >= 5 * MINUTE_NS for a, b in pairwise(begun))


def test_equal_events_give_equal_effects() -> None:
    logs = []
    for _ in range(2):
        cluster = Cluster(BalancePolicy(), span=SHORT_SPAN)
        cluster.minutes(0, 40, random.Random(5), 1.5, *LONG_PROMPTS)
        logs.append(cluster.log)
    assert logs[0] == logs[1]
    assert len(logs[0]) > 5


NODES = [NodeName(f"n{at}") for at in range(5)]
EVENTS = st.one_of(
    st.just(Look()),
    st.sampled_from([Drained(n) for n in NODES] + [Converted(n) for n in NODES] + [Overdue(n) for n in NODES]),
    st.sampled_from([Failed(n, "gone") for n in NODES]),
    st.tuples(st.permutations(NODES), st.integers(0, 5), st.integers(0, 5)).map(
        lambda one: Staffed(tuple(one[0][: one[1]]), tuple(one[0][one[1] : max(one[1], one[2])]), REMOTES)
    ),
)
LIMITS = st.tuples(st.integers(0, 2), st.integers(1, 2)).map(lambda pair: Limits(*pair))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(EVENTS, max_size=30), LIMITS, st.sampled_from([Predictive(0.0, 0.0, drift=0.0), Ratio()]), st.booleans()
)
def test_any_order_of_events_keeps_its_promises(
    events: list[BalanceEvent], limits: Limits, rule: Predictive | Ratio, prompts: bool
) -> None:
    """One conversion at a time, of a node that was there; a role that gives keeps its minimum."""
    balancer = busy(*(LONG_PROMPTS if prompts else LONG_ANSWERS), BalancePolicy(rule, limits))
    for at, event in enumerate(events):
        before, busy_with = (balancer.prefill, balancer.decode), balancer.under_way
        for effect in balancer.handle(5 * MINUTE_NS + at, event):
            if isinstance(effect, Drain):
                giving, least = (before[0], limits.prefill) if effect.role == "prefill" else (before[1], limits.decode)
                assert busy_with is None
                assert effect.node in giving
                assert len(giving) > least
        balancer.validate()
