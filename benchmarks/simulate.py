"""How many requests a second of one core the simulator does: the contract is 25,000 for the paper's case, no caches.

The paper's clusters at 70 % of Lambda_max under the default policy, and under `threshold`. Beside it, in the same run
and under `threshold` too, the same model written in simpy (if it is installed): a floor that is shown, not a rival. The
seconds are of the process's own CPU time, since others may use the machine; wall time is shown too. What must not grow
with the length of a run, the cost of a request and memory, is shown for `--requests` and a tenth of them.

    python -m benchmarks.simulate [--requests 200000] [--trace agentic.jsonl.gz] [--json FILE]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from msgspec.structs import replace

from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import Trace
from prfaas.plan.planreader import read_plan
from prfaas.sim.fromplan import Planned, planned
from prfaas.sim.run import Run, perform
from prfaas.sim.scenario import Scenario

PAPER = Path(__file__).parents[1] / "examples" / "paper.yaml"
CONTRACT = 25_000
CONTRACT_TRACE = 10_000
LOAD = 0.7
TRACE_LOAD = 0.38
"""Of a bound that counts every prefix as found; turns that overlap find fewer."""
OUTPUT_S = 1024 * 0.025
SLOTS = 100


@dataclass(frozen=True, slots=True)
class Speed:
    """Requests, and seconds of CPU and of wall time that they took. `memory_mb`: the process's largest, so far."""

    what: str
    requests: int
    cpu_s: float
    wall_s: float
    memory_mb: float

    @property
    def rate(self) -> float:
        """Requests a second of CPU time."""
        return self.requests / self.cpu_s


def timed(what: str, work: Callable[[], int]) -> Speed:
    """`work` tells how many requests it did."""
    cpu, wall = time.process_time(), time.perf_counter()
    requests = work()
    took = time.process_time() - cpu, time.perf_counter() - wall
    return Speed(what, requests, *took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def paper(trace: Path | None = None) -> Planned:
    """The paper's plan, or the same for a trace."""
    said, document = read_plan(PAPER)
    if trace is not None:
        said = replace(said, traffic=replace(said.traffic, lengths=Trace(file=str(trace.absolute())), output=None))
    return planned(Plan(read_inputs(said, document)))


def ours(case: Planned, policy: str, requests: int, replay: bool = False, load: float = LOAD) -> int:
    """One run of the simulator."""
    rate = case.bound * load
    duration_ns = int(requests / rate * 1e9)
    run = Run(case, Scenario(), policy, 1, rate, duration_ns, replay)
    return perform(run).tally.ended


def simpys(case: Planned, requests: int) -> int:
    """The same clusters, times and rule in simpy: a process a request; links never bind here, as in the paper."""
    import simpy

    env = simpy.Environment()
    home, far = case.setup.clusters
    stages = simpy.Resource(env, home.prefill), simpy.Resource(env, far.prefill), simpy.Resource(env, SLOTS)
    costs = home.prefill_ns, far.prefill_ns
    ended = []

    def request(tokens: int) -> Any:
        at = int(tokens > case.threshold)
        with stages[at].request() as node:
            yield node
            yield env.timeout(costs[at](tokens, tokens) / 1e9)
        if at:
            yield env.timeout(0.005)
        with stages[2].request() as slot:
            yield slot
            yield env.timeout(OUTPUT_S)
        ended.append(env.now)

    def arrive() -> Any:
        draw, chance = case.draw(Random("lengths 1")), Random("times 1")
        for _ in range(requests):
            yield env.timeout(chance.expovariate(case.bound * LOAD))
            env.process(request(draw()[0]))

    env.process(arrive())
    env.run()
    return len(ended)


def main() -> None:
    """Print a table, and the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--trace", type=Path, help="also this trace, with caches")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    case = paper()
    for name in ("threshold", "ours"):  # lengths that were seen once are remembered
        ours(case, name, options.requests // 10)
    rows = [timed(f"ours, a tenth: {options.requests // 10}", lambda: ours(case, "ours", options.requests // 10))]
    rows += [
        timed(f"policy {name}", lambda name=name: ours(case, name, options.requests)) for name in ("ours", "threshold")
    ]  # type: ignore[misc]
    if importlib.util.find_spec("simpy"):
        rows.append(timed("simpy, threshold", lambda: simpys(case, options.requests // 4)))
    if options.trace:
        recorded = paper(options.trace)
        many = len(recorded.rows)
        rows.append(
            timed(
                f"{options.trace.stem}, with caches", lambda: ours(recorded, "ours", many, replay=True, load=TRACE_LOAD)
            )
        )
    for row in rows:
        print(
            f"{row.what:<34}{row.rate:>10,.0f} requests a second of CPU ({row.requests / row.wall_s:,.0f} of wall time)"
            f"{row.memory_mb:>9.0f} MB"
        )
    floor = next((row for row in rows if "simpy" in row.what), None)
    if floor is not None:
        print(f"under the same rule {rows[2].rate / floor.rate:.2f} times simpy")
    print(f"contract: {CONTRACT:,} a second without caches: {'met' if rows[1].rate >= CONTRACT else 'MISSED'}")
    if options.json:
        found = [
            {"what": row.what, "requests_per_cpu_s": round(row.rate), "memory_mb": round(row.memory_mb)} for row in rows
        ]
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
