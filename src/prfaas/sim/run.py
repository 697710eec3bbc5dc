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
from prfaas.sim.fromplan import BLOCK_TOKENS, Planned, with_cache, with_host
from prfaas.sim.scenario import Scenario
from prfaas.sim.sessions import Sessions
from prfaas.sim.setup import Setup
from prfaas.sim.tally import SERIES, Tally
from prfaas.sim.world import Log, World

WARM_UP = 0.1
"""Part of a run that statistics leave out, for queues begin empty."""


def replay_ns(planned: Planned, rate: float | None) -> int:
    """How long the requests of its trace come, at `rate` a second, None: as recorded."""
    stretch = 1.0 if rate is None else planned.recorded_rate / rate
    return int(planned.rows[-1].at_ns * stretch) + 1


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
    def whole(self) -> bool:
        """Whether all of a trace is replayed."""
        return self.replay and self.duration_ns >= replay_ns(self.planned, self.rate)

    @property
    def at_once(self) -> bool:
        """Whether a trace is replayed whose rows all come at once, so that there is no rate."""
        return self.replay and not self.planned.rows[-1].at_ns

    @property
    def offered(self) -> float | None:
        """Requests a second that come; None: all at once."""
        if self.at_once:
            return None
        return self.planned.recorded_rate if self.rate is None else self.rate


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run. `wall_s`: how long it took here, which is the only part that differs from time to time."""

    run: Run
    tally: Tally
    world: World
    wall_s: float

    @property
    def arrivals_ns(self) -> int:
        """How long requests came."""
        planned = self.run.duration_ns
        return min(planned, self.world.now_ns) if self.world.interrupted else planned

    @property
    def until_ns(self) -> int:
        """Where what is measured ends: with the arrivals; of a trace that is replayed whole, with the last answer."""
        if not self.run.whole:
            return self.arrivals_ns
        return self.world.now_ns if self.world.interrupted else self.tally.last_ns

    @property
    def goodput(self) -> float | None:
        """Requests a second that ended between warm-up and `until_ns` and met the objectives; None where nothing was
        measured."""
        measured_ns = self.until_ns - self.tally.from_ns
        return self.tally.good * SECOND_NS / measured_ns if self.tally.ttft.count and measured_ns > 0 else None

    @property
    def saturated(self) -> bool:
        """Whether queues still grew at the end of arrivals."""
        return self.tally.grows(self.arrivals_ns)

    @property
    def egress_bps(self) -> float:
        """Over all links to PD clusters, on average until `until_ns`."""
        world, until_ns = self.world, self.until_ns
        sent = world.egress_bytes
        if self.run.whole or until_ns < self.run.duration_ns:
            for line in world.lines.values():
                line.book(world.now_ns)
            homes = world.setup.homes
            sent = sum(line.total for (_, to), line in world.lines.items() if to in homes)
        return sent * 8 * SECOND_NS / max(1, until_ns)

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
    warmup_ns = int(run.duration_ns * WARM_UP)
    tally = Tally(
        max(1, run.duration_ns // SERIES),
        slo.ttft_p90_ns,
        slo.tpot_ns,
        from_ns=warmup_ns,
        until_ns=None if run.whole else run.duration_ns,
    )
    kind = World if scenario.prefill is None else ChunkedWorld
    world = kind(
        changed(_cached(planned, scenario), scenario),
        policy,
        _arrivals(run),
        tally,
        duration_ns=run.duration_ns,
        warmup_ns=warmup_ns,
        faults=scenario.planned_faults(),
        chance=Random(f"homes {run.seed}"),
        sessions=_sessions(run),
        balance=_balance(run, threshold),
        log=log,
    )
    began = perf_counter()
    world.run()
    outcome = Outcome(run, tally, world, perf_counter() - began)
    if world.interrupted:
        tally.end_early(int(outcome.arrivals_ns * WARM_UP))
    return outcome


def _cached(planned: Planned, scenario: Scenario) -> Setup:
    setup, host = with_cache(planned, scenario.cache_bytes), scenario.host
    return setup if host is None else with_host(setup, planned, int(host.size), int(host.bps))


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
    rate = run.planned.recorded_rate if run.rate is None else run.rate
    return run.scenario.stream(rate, draw, Random(f"times {run.seed}"))


def _sessions(run: Run) -> Sessions | None:
    draw = run.planned.draw(Random(f"lengths {run.seed}"))
    most = run.planned.inputs.workload.lengths.tops[-1]
    return run.scenario.sessions(BLOCK_TOKENS, most, draw, Random(f"times {run.seed}"))


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and half of its 95 % confidence interval; None where one value says nothing of it."""

    mean: float
    half: float | None


_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


def interval(values: Sequence[float]) -> Interval:
    """By Student's t; beyond 15 degrees of freedom the last of its table, which is wider than right."""
    many = len(values)
    mean = sum(values) / many
    if many < 2:
        return Interval(mean, None)
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


RANGE = 1.5
"""Rates are searched up to so many times the bound."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search for the highest rate found. `met`: the highest rate tried at which the objective was met, None:
    at none; `missed`: the lowest at which it was not, None: at none. `interrupted`: it may be closed in further."""

    met: float | None
    missed: float | None
    tried: tuple[tuple[float, bool], ...]
    interrupted: bool


def highest_rate(run: Run, meets: Callable[[Outcome], bool], steps: int = 9) -> Found:
    """The highest rate at which `meets` holds, between 0 and 1.5 times the bound, by bisection. Ctrl-C ends it early.
    A trace that is replayed whole is so at every rate. Where some can never end no objective is met: those that did end
    say nothing of them."""
    low, high = 0.0, RANGE * run.planned.bound
    tried: list[tuple[float, bool]] = []
    interrupted = False
    for _ in range(steps):
        rate = (low + high) / 2
        lasts_ns = replay_ns(run.planned, rate) if run.whole else run.duration_ns
        try:
            outcome = perform(replace(run, rate=rate, duration_ns=lasts_ns))
            interrupted = outcome.world.interrupted
        except KeyboardInterrupt:
            interrupted = True
        if interrupted:
            break
        good = not outcome.world.stuck and meets(outcome)
        tried.append((rate, good))
        low, high = (rate, high) if good else (low, rate)
    met = max((rate for rate, good in tried if good), default=None)
    missed = min((rate for rate, good in tried if not good), default=None)
    return Found(met, missed, tuple(tried), interrupted)
