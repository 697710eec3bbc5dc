"""One run, from a plan and a scenario to what came of it; and several: policies side by side, the highest rate.

It knows how streams of chance are parted: lengths and times have their own each, so that policies and rates are
compared on the same requests. It does not know files or the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from random import Random
from time import perf_counter

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival
from prfaas.sim.balance import BalanceSetup
from prfaas.sim.chunked import ChunkedWorld
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.fromplan import BLOCK_TOKENS, Planned, with_cache
from prfaas.sim.scenario import Scenario
from prfaas.sim.sessions import Sessions
from prfaas.sim.setup import Setup
from prfaas.sim.tally import SERIES, Tally
from prfaas.sim.world import Log, World

WARM_UP = 0.1
"""Part of a run that statistics leave out, for queues begin empty."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is run. `rate`: requests a second, None: as recorded. `replay`: the trace in its order, instead of lengths
    by chance. `threshold` and `order` None: the plan's, the policy's own."""

    planned: Planned
    scenario: Scenario
    policy: str
    seed: int
    rate: float | None
    duration_ns: int
    replay: bool = False
    threshold: int | None = None
    order: float | None = None

    @property
    def offered(self) -> float:
        """Requests a second that come."""
        return self.planned.recorded_rate if self.rate is None else self.rate


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run. `wall_s`: how long it took here, which is the only part that differs from time to time."""

    run: Run
    tally: Tally
    world: World
    wall_s: float

    @property
    def measured_s(self) -> float:
        """Seconds in which counted requests arrived."""
        return self.run.duration_ns * (1 - WARM_UP) / SECOND_NS

    @property
    def goodput(self) -> float:
        """Requests a second that met the objectives, of those that were counted."""
        return self.tally.good / self.measured_s

    @property
    def egress_bps(self) -> float:
        """Over all links, on average."""
        return self.world.egress_bytes * 8 * SECOND_NS / self.run.duration_ns

    @property
    def peak_bps(self) -> float:
        """Over all links to PD clusters, the largest second of each."""
        homes = self.world.setup.homes
        return sum(line.peak for (_, to), line in self.world.lines.items() if to in homes) * 8e9

    def use(self) -> dict[str, float]:
        """By cluster, the part of its prefill nodes that was busy while requests came."""
        found = {}
        for at, (busy_ns, there_ns) in enumerate(self.world.worked):
            if self.world.count(at):
                found[self.world.setup.clusters[at].name] = busy_ns / max(1, there_ns)
        return found


def perform(run: Run, log: Log | None = None) -> Outcome:
    """Run it."""
    planned, scenario = run.planned, run.scenario
    threshold = planned.threshold if run.threshold is None else run.threshold
    policy = policy_of(run.policy, threshold, run.order)
    slo = planned.inputs.said.slo
    tally = Tally(max(1, run.duration_ns // SERIES), slo.ttft_p90_ns, slo.tpot_ns)
    kind = World if scenario.prefill is None else ChunkedWorld
    world = kind(
        changed(with_cache(planned, scenario.cache_bytes), scenario),
        policy,
        _arrivals(run),
        tally,
        duration_ns=run.duration_ns,
        warmup_ns=int(run.duration_ns * WARM_UP),
        faults=scenario.planned_faults(),
        chance=Random(f"homes {run.seed}"),
        sessions=_sessions(run),
        balance=_balance(run, threshold),
        log=log,
    )
    began = perf_counter()
    world.run()
    return Outcome(run, tally, world, perf_counter() - began)


def changed(setup: Setup, scenario: Scenario) -> Setup:
    """`setup` as the scenario has it."""
    cache = setup.cache and replace(setup.cache, lease_ns=int(scenario.lease_ns))
    links = tuple(replace(link, loss=scenario.loss) for link in setup.links) if scenario.loss else setup.links
    chunked = scenario.prefill
    chunks = None if chunked is None else ChunkSetup(chunked.chunk, chunked.prompts)
    return replace(setup, links=links, cache=cache, chunks=chunks)


def _balance(run: Run, threshold: int) -> BalanceSetup | None:
    said = run.scenario.balance
    if said is None:
        return None
    output = run.planned.inputs.workload.output
    return BalanceSetup(said.rule, int(said.every_ns), int(said.window_ns), int(said.cost_ns), output, threshold)


def _arrivals(run: Run) -> Iterator[Arrival]:
    if run.replay:
        return run.planned.replay(run.rate)
    draw = run.planned.draw(Random(f"lengths {run.seed}"))
    return run.scenario.stream(run.offered, draw, Random(f"times {run.seed}"))


def _sessions(run: Run) -> Sessions | None:
    draw = run.planned.draw(Random(f"lengths {run.seed}"))
    most = run.planned.inputs.workload.lengths.tops[-1]
    return run.scenario.sessions(BLOCK_TOKENS, most, draw, Random(f"times {run.seed}"))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half of its 95 % confidence interval; 0 where one value says nothing of it."""

    mean: float
    half: float


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def interval(values: Sequence[float]) -> Interval:
    """By Student's t; beyond 15 degrees of freedom the last of its table, which is wider than right."""
    many = len(values)
    mean = sum(values) / many
    if many < 2:
        return Interval(mean, 0.0)
    spread = sqrt(sum((value - mean) ** 2 for value in values) / (many - 1))
    return Interval(mean, _T95[min(many - 1, len(_T95)) - 1] * spread / sqrt(many))


METRICS: dict[str, Callable[[Outcome], float]] = {
    f"{name}_{what}": (lambda outcome, name=name, part=part: _of(outcome, name, part))  # type: ignore[misc]
    for name in ("ttft", "tpot", "e2e")
    for what, part in (("mean", None), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
}
"""What can be compared and asked for, all in seconds."""


def _of(outcome: Outcome, name: str, part: float | None) -> float:
    tally = outcome.tally
    values = {"ttft": tally.ttft, "tpot": tally.tpot, "e2e": tally.whole}[name]
    return (values.mean if part is None else values.quantile(part)) / 1e9


def highest_rate(run: Run, meets: Callable[[Outcome], bool], steps: int = 9) -> tuple[float, list[tuple[float, bool]]]:
    """The highest rate at which `meets` holds, between 0 and 1.5 times the bound, by bisection; and what was tried."""
    low, high = 0.0, 1.5 * run.planned.bound
    tried = []
    for _ in range(steps):
        rate = (low + high) / 2
        outcome = perform(replace(run, rate=rate))
        good = not outcome.world.interrupted and meets(outcome)
        tried.append((rate, good))
        if outcome.world.interrupted:
            break
        low, high = (rate, high) if good else (low, rate)
    return low, tried
