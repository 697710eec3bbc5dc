"""The simulator and the live machines under asyncio decide the same: request by request, place, reason and time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from random import Random

import pytest
from tests.sim.conftest import flat
from tests.sim.conftest import run as simulated

from prfaas.core.ids import ClusterName, RequestId
from prfaas.core.routing.catalog import NAMES, policy_of
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import Decided
from prfaas.core.routing.events import Arrived
from prfaas.runtime.driver import Driver
from prfaas.sim.arrivals import SECOND_NS, Arrival
from prfaas.sim.faults import Fault
from prfaas.sim.setup import Setup
from prfaas.testing.clock import run_virtual
from prfaas.testing.twin import NEVER_LATE_NS, Effect, Twin, TwinEvent
from prfaas.testing.virtual import VirtualDriver

THRESHOLD = 8_000
WARM_UP = ((0, 100), (100, 60_000))
"""Seconds and tokens of the first two, alone: from them the live side learns what KV weighs."""
BEGIN_S = 200
END_S = 2_000

Row = tuple[int, int, str, str]
"""When, in ns; the request's number; the cluster; the reason."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Prefill nodes and ns a token, our own cluster first; seconds and tokens of who comes; and when, in seconds, a
    node of which cluster leaves for how long, in which nobody has work."""

    clusters: tuple[tuple[str, int, int], ...]
    come: tuple[tuple[float, int], ...]
    away: tuple[float, str, float] | None = None


def poisson(seed: int, rate: float, most: int, count: int, begin_s: float = 0.0) -> tuple[tuple[float, int], ...]:
    chance = Random(seed)
    times = accumulate(chance.expovariate(rate) for _ in range(count))
    return tuple((begin_s + at, round(min(most, 50 + chance.lognormvariate(8.5, 1.5)))) for at in times)


TWO = (("home", 3, 100_000), ("far", 4, 40_000))
SCENARIOS = {
    "quiet": Scenario(TWO, poisson(1, 0.5, 100_000, 60)),
    "busy": Scenario(TWO, poisson(2, 6.0, 100_000, 400)),
    "two far clusters": Scenario((*TWO, ("farther", 2, 20_000)), poisson(3, 9.0, 100_000, 400)),
    "burst": Scenario(TWO, tuple((at // 40, 1_000 + 997 * at % 30_000) for at in range(200))),
    "a node leaves and comes back": Scenario(
        TWO, poisson(4, 3.0, 50_000, 120) + poisson(5, 3.0, 50_000, 120, 700.0), (500.0, "far", 1_000.0)
    ),
}


def arrivals(scenario: Scenario) -> list[tuple[int, int]]:
    """ns and tokens."""
    come = [*WARM_UP, *((BEGIN_S + at, tokens) for at, tokens in scenario.come)]
    return [(int(at * SECOND_NS), tokens) for at, tokens in come]


def curves(setup: Setup) -> list[Curve]:
    """The clusters of `flat` take as long as straight lines say, so two points are all of it."""
    return [Curve([(0, 0), (200_000, one.prefill_ns(200_000, 200_000))]) for one in setup.clusters]


def as_simulated(scenario: Scenario, policy: str) -> list[Row]:
    rows: list[Row] = []

    def log(now_ns: int, number: int, cluster: str, reason: str, scores: tuple[float, ...]) -> None:
        rows.append((now_ns, number, cluster, reason))

    faults = []
    if scenario.away is not None:
        at, cluster, lasts = scenario.away
        begin = int((BEGIN_S + at) * SECOND_NS)
        faults.append(Fault("node_down", cluster, begin, begin + int(lasts * SECOND_NS), node=0))
    stream: Iterator[Arrival] = iter([Arrival(at, tokens, 2) for at, tokens in arrivals(scenario)])
    chosen = policy_of(policy, THRESHOLD)
    simulated(wide(scenario), chosen, stream, END_S, faults=faults, log=log)
    return rows


def wide(scenario: Scenario) -> Setup:
    """Links on which KV is never late: how a line is shared is the simulator's alone."""
    return flat(scenario.clusters, bps=10**13)


def script(scenario: Scenario, twin: Twin) -> list[tuple[int, TwinEvent]]:
    steps: list[tuple[int, TwinEvent]] = [(0, event) for event in twin.begin()]
    for number, (at_ns, tokens) in enumerate(arrivals(scenario)):
        steps.append((at_ns, Arrived(RequestId(str(number)), tokens, NEVER_LATE_NS)))
    if scenario.away is not None:
        at, cluster, lasts = scenario.away
        for after, event in (
            (at, twin.gone(ClusterName(cluster), 0)),
            (at + lasts, twin.node(ClusterName(cluster), 0)),
        ):
            steps.append((int((BEGIN_S + after) * SECOND_NS), event))
    return steps


def live(scenario: Scenario, policy: str, drive: Callable[[Twin, Sequence[tuple[int, TwinEvent]], list[Row]], None]):
    setup = wide(scenario)
    twin, rows = Twin(setup, curves(setup), policy, THRESHOLD), list[Row]()
    drive(twin, script(scenario, twin), rows)
    twin.validate()
    assert not twin.router.requests
    return rows


def logging(rows: list[Row]) -> Callable[[int, Effect], None]:
    def perform(now_ns: int, effect: Effect) -> None:
        if isinstance(effect, Decided):
            rows.append((effect.at_ns, int(effect.request), effect.cluster, effect.reason))

    return perform


def under_asyncio(twin: Twin, steps: Sequence[tuple[int, TwinEvent]], rows: list[Row]) -> None:
    async def main() -> None:
        driver: Driver[TwinEvent, Effect] = Driver(twin, logging(rows))
        for at_ns, event in steps:
            driver.later(at_ns, event)
        await asyncio.sleep(END_S)
        driver.close()

    run_virtual(main())


def in_virtual_time(twin: Twin, steps: Sequence[tuple[int, TwinEvent]], rows: list[Row]) -> None:
    driver: VirtualDriver[TwinEvent, Effect] = VirtualDriver(twin, logging(rows))
    for at_ns, event in steps:
        driver.later(at_ns, event)
    driver.run(END_S * SECOND_NS)


def counted(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row[0] >= BEGIN_S * SECOND_NS]


@pytest.mark.slow
@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_simulator_and_asyncio_decide_the_same(name: str, policy: str) -> None:
    scenario = SCENARIOS[name]
    expected = counted(as_simulated(scenario, policy))
    assert sum(row[3] != "claimed" for row in expected) == len(scenario.come)
    assert counted(live(scenario, policy, under_asyncio)) == expected
    assert counted(live(scenario, policy, in_virtual_time)) == expected


def test_the_scenarios_are_rich_enough_to_tell_policies_apart() -> None:
    reasons = {row[3] for name in SCENARIOS for row in counted(as_simulated(SCENARIOS[name], "ours"))}
    assert {"long", "short", "spare", "sooner_here", "cheaper"} <= reasons
    busy = {policy: counted(as_simulated(SCENARIOS["busy"], policy)) for policy in NAMES}
    assert len({tuple(rows) for rows in busy.values()}) >= len(NAMES) - 1


def test_another_speed_is_seen() -> None:
    """What is compared depends on the curves: with others the logs part."""
    scenario = SCENARIOS["busy"]
    other = replace(scenario, clusters=(("home", 3, 100_000), ("far", 4, 55_000)))
    assert counted(live(other, "ours", in_virtual_time)) != counted(as_simulated(scenario, "ours"))
