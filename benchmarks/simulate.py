"""How many requests a second of one core the simulator does, beside what others would use, in the same run.

The contract: 25,000 for the paper's clusters at 70 % of Lambda_max without caches, 10,000 on the agentic trace with
them, 5 times Dynamo's offline replay of the same trace; neither the cost of a request nor memory grows with the run.

Sides take turns, `--rounds` times, and ratios are medians over rounds: others may use the machine. Seconds are of the
process's own CPU time; wall time is in the JSON too. `--simpy`: the same model in simpy, a floor that is shown, not a
rival (`pip install simpy` somewhere on PYTHONPATH). `--dynamo PYTHON`: Dynamo's offline replay of each `--trace`, in a
Python with ai-dynamo-runtime 1.6.1. What each leaves out: `LEFT_OUT`, and the docstrings of `simulate_simpy` and
`simulate_dynamo`. `--million`: one run of a million requests, looked at ten times.

    python -m benchmarks.simulate [--requests 50000] [--rounds 5] [--trace FILE.jsonl.gz]... [--simpy] [--dynamo PYTHON]
        [--million] [--json FILE]
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from msgspec.structs import replace

from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import Trace
from prfaas.plan.planreader import read_plan
from prfaas.sim.arrivals import Draw
from prfaas.sim.fromplan import BLOCK_TOKENS, Planned, planned
from prfaas.sim.run import Outcome, Run, perform
from prfaas.sim.scenario import Scenario

PAPER = Path(__file__).parents[1] / "examples" / "paper.yaml"
DYNAMO = Path(__file__).parent / "simulate_dynamo.py"
CONTRACT = 25_000
CONTRACT_TRACE = 10_000
CONTRACT_DYNAMO = 5
LOAD = 0.7
MILLION = 1_000_000
ROUTERS = ("kv_router", "round_robin")
CHUNK_TOKENS = 8192
LEFT_OUT = {
    "ours": "steps of decode batches between changes (they are counted, not stepped), chunks and batches of prefill, "
    "blocks of KV on decode nodes",
    "dynamo": "clusters that differ, shared links that fill, policies between clusters, moves and faults: all its "
    "workers are alike, on one site",
}


@dataclass(slots=True)
class Side:
    """Seconds of CPU and of wall time that `requests` took, a pair a round."""

    what: str
    requests: int
    rounds: list[tuple[float, float]] = field(default_factory=list)
    said: dict[str, float] = field(default_factory=dict)

    def rates(self) -> list[float]:
        """Requests a second of CPU time, by round."""
        return [self.requests / cpu for cpu, _ in self.rounds]

    def over(self, other: Side) -> float:
        """How many times faster than `other`: the median over rounds."""
        return median(mine / its for mine, its in zip(self.rates(), other.rates(), strict=True))

    def line(self) -> str:
        """For people."""
        rates = self.rates()
        said = "".join(f", {name} {value:.3f}" for name, value in self.said.items())
        return (
            f"  {self.what:<34}{median(rates):>10,.0f} a second of CPU ({min(rates):,.0f} to {max(rates):,.0f}){said}"
        )

    def json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "what": self.what,
            "requests": self.requests,
            "per_cpu_s": round(median(self.rates())),
            "per_cpu_s_rounds": [round(rate) for rate in self.rates()],
            "per_wall_s": round(median(self.requests / wall for _, wall in self.rounds)),
            **{name: round(value, 4) for name, value in self.said.items()},
        }

    def timed(self, work: Callable[[], dict[str, float]]) -> None:
        """One more round, in this process."""
        cpu, wall = time.process_time(), time.perf_counter()
        self.said = work()
        self.rounds.append((time.process_time() - cpu, time.perf_counter() - wall))


def met(found: float, wanted: float) -> str:
    """For people."""
    return "met" if found >= wanted else f"MISSED, {found / wanted:.3f} of it"


def paper(trace: Path | None = None) -> Planned:
    """The paper's plan, or the same for a trace."""
    said, document = read_plan(PAPER)
    if trace is not None:
        said = replace(said, traffic=replace(said.traffic, lengths=Trace(file=str(trace.absolute())), output=None))
    return planned(Plan(read_inputs(said, document)))


def ours(case: Planned, policy: str, requests: int) -> Outcome:
    """One run of the simulator, without caches."""
    rate = case.bound * LOAD
    return perform(Run(case, Scenario(), policy, 1, rate, int(requests / rate * 1e9)))


def recorded(case: Planned) -> Outcome:
    """One run over a trace, at its own times."""
    return perform(Run(case, Scenario(), "ours", 1, None, case.rows[-1].at_ns + 1, replay=True))


def ttft(outcome: Outcome) -> dict[str, float]:
    """What is compared: the mean time to the first token, and what caches gave."""
    tally = outcome.tally
    found = {"ttft_s": tally.ttft.mean / 1e9}
    if outcome.world.caches:
        found["hit_share"] = tally.cached_tokens / max(1, tally.prompt_tokens)
    return found


def without_caches(requests: int, rounds: int, simpy: bool) -> dict[str, Any]:
    """The paper's case: `ours`, `threshold`, and simpy's threshold."""
    case = paper()
    mine, same, its = Side("ours", requests), Side("ours, policy threshold", requests), Side("simpy", requests)
    for name in ("threshold", "ours"):  # lengths that were seen once are remembered
        ours(case, name, requests)
    for _ in range(rounds):
        mine.timed(lambda: ttft(ours(case, "ours", requests)))
        same.timed(lambda: ttft(ours(case, "threshold", requests)))
        if simpy:
            from benchmarks.simulate_simpy import simulated

            its.timed(lambda: {"ttft_s": simulated(case, case.bound * LOAD, requests / case.bound / LOAD).mean / 1e9})
    sides = [mine, same, *([its] if simpy else [])]
    print(f"The paper's clusters, no caches, {requests:,} requests, {LOAD:.0%} of Lambda_max")
    for side in sides:
        print(side.line())
    rate = median(mine.rates())
    print(f"  contract {CONTRACT:,}: {met(rate, CONTRACT)}")
    found: dict[str, Any] = {"sides": [side.json() for side in sides], "contract_met": rate >= CONTRACT}
    if simpy:
        found["times_simpy"] = round(same.over(its), 2)
        found["ttft_more_than_simpy_ms"] = round(1000 * (same.said["ttft_s"] - its.said["ttft_s"]), 2)
        found["half_a_step_ms"] = (case.setup.clusters[0].flat_step_ns or 0) / 2e6
        print(
            f"  the same rule: {found['times_simpy']} times simpy; mean TTFT {found['ttft_more_than_simpy_ms']} ms "
            f"more: the wait for a decode step, {found['half_a_step_ms']} ms on average, is not in simpy's model"
        )
    return found


def with_caches(trace: Path, rounds: int, dynamo: str | None) -> dict[str, Any]:
    """A trace at its own times: `ours`, and Dynamo's replay of it under two of its routers."""
    case = paper(trace)
    many = len(case.rows)
    mine = Side("ours", many)
    theirs = [Side(f"dynamo, {router}", many) for router in ROUTERS] if dynamo else []
    recorded(case)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "trace.jsonl"
        plain.write_bytes(gzip.decompress(trace.read_bytes()) if trace.suffix == ".gz" else trace.read_bytes())
        for _ in range(rounds):
            mine.timed(lambda: ttft(recorded(case)))
            for router, side in zip(ROUTERS, theirs, strict=False):
                assert dynamo is not None
                side.requests = dynamos(dynamo, question(case, plain, router), side)
    name = trace.name.split(".")[0]
    print(f"Trace {name}, with caches, {many:,} requests, {case.recorded_rate:.2f} a second")
    for side in [mine, *theirs]:
        print(side.line())
    found: dict[str, Any] = {"trace": name, "sides": [side.json() for side in (mine, *theirs)]}
    rate = median(mine.rates())
    if name == "agentic":
        found["contract_met"] = rate >= CONTRACT_TRACE
        print(f"  contract {CONTRACT_TRACE:,}: {met(rate, CONTRACT_TRACE)}")
    for router, side in zip(ROUTERS, theirs, strict=False):
        ratio = mine.over(side)
        found[f"times_dynamo_{router}"] = round(ratio, 2)
        print(
            f"  {ratio:.2f} times Dynamo's replay, {router}; contract {CONTRACT_DYNAMO}: {met(ratio, CONTRACT_DYNAMO)}"
        )
    return found


def question(case: Planned, trace: Path, router: str) -> dict[str, Any]:
    """What `simulate_dynamo` is asked: as many nodes, and the mean of their times for a batch of prefill."""
    clusters = case.setup.clusters
    home = clusters[case.setup.homes[0]]
    nodes = sum(one.prefill for one in clusters)
    prefill_ns = (
        sum(one.prefill * one.prefill_ns(CHUNK_TOKENS, CHUNK_TOKENS) for one in clusters if one.prefill) / nodes
    )
    return {
        "trace": str(trace),
        "block_tokens": BLOCK_TOKENS,
        "prefill": nodes,
        "prefill_sequences": 1,
        "prefill_ms": prefill_ns / 1e6,
        "decode": home.decode,
        "slots": home.batch,
        "decode_ms": (home.flat_step_ns or home.step_ns(home.batch, 32_768)) / 1e6,
        "router": router,
    }


def dynamos(python: str, asked: dict[str, Any], side: Side) -> int:
    """One replay, without the reading of the trace; how many requests it did."""
    done = subprocess.run(
        [python, str(DYNAMO)],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "DYN_LOG": "off", "PYTHONPATH": ""},
        check=False,
    )
    if done.returncode:
        sys.exit(f"{python} cannot replay: {done.stderr.strip().splitlines()[-1]}; expected ai-dynamo-runtime 1.6.1")
    found = json.loads(done.stdout)
    side.rounds.append((found["cpu_s"] - found["read_cpu_s"], found["wall_s"] - found["read_wall_s"]))
    side.said = {"ttft_s": found["ttft_s"], "hit_share": found["hit_share"]}
    return int(found["completed"])


@dataclass(frozen=True)
class Watched(Planned):
    """A plan that notes CPU time and memory each time `every` more lengths were drawn."""

    every: int = 1
    seen: list[tuple[float, float]] = field(default_factory=list)

    def draw(self, chance: Random) -> Draw:
        """As the plan's."""
        draw, drawn = super().draw(chance), 0
        if self.seen:  # the second stream of a run is of its sessions, which has none here
            return draw
        self.seen.append((time.process_time(), resident_mb()))

        def watched() -> tuple[int, int]:
            nonlocal drawn
            drawn += 1
            if drawn % self.every == 0:
                self.seen.append((time.process_time(), resident_mb()))
            return draw()

        return watched


def resident_mb() -> float:
    """What this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def million(requests: int = MILLION) -> dict[str, Any]:
    """One long run of the paper's case: requests a second of CPU in each tenth of it, and memory after each."""
    case = paper()
    watched = Watched(case.plan, case.setup, case.bound, case.threshold, requests // 10)
    outcome = ours(watched, "ours", requests)
    seen = watched.seen[:11]
    rates = [requests / 10 / (after[0] - before[0]) for before, after in pairwise(seen)]
    memory = [mb for _, mb in seen[1:]]
    print(f"One run of {outcome.tally.ended:,} requests, {outcome.world.events:,} events, {outcome.wall_s:.0f} s here")
    print(f"  requests a second of CPU, by tenth: {', '.join(f'{rate:,.0f}' for rate in rates)}")
    print(f"  MB in memory after each: {', '.join(f'{mb:.0f}' for mb in memory)}")
    return {
        "requests": outcome.tally.ended,
        "per_cpu_s_by_tenth": [round(rate) for rate in rates],
        "memory_mb_by_tenth": [round(mb, 1) for mb in memory],
        "last_half_over_first_cost": round(
            sum(1 / rate for rate in rates[5:]) / sum(1 / rate for rate in rates[:5]), 3
        ),
    }


def machine() -> dict[str, Any]:
    """What it ran on, and how busy that was."""
    return {
        "cores": os.cpu_count(),
        "load": [round(one, 1) for one in os.getloadavg()],
        "python": platform.python_version(),
    }


def main() -> None:
    """Print what is found, and write it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=50_000, help="of each run without caches")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--trace", type=Path, action="append", default=[], help="also this trace, with caches")
    parser.add_argument("--simpy", action="store_true", help="the same model in simpy")
    parser.add_argument("--dynamo", metavar="PYTHON", help="Dynamo's replay of each trace, in this Python")
    parser.add_argument("--million", action="store_true", help="one run of a million requests")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.simpy and not importlib.util.find_spec("simpy"):
        parser.error("--simpy: simpy is not installed here; expected it on PYTHONPATH (pip install --target DIR simpy)")
    if options.dynamo and not options.trace:
        parser.error("--dynamo without --trace: expected a trace to replay")
    before = machine()
    found: dict[str, Any] = {}
    if options.million:  # first, so that what is in memory is its own
        found["million"] = million()
    found["without_caches"] = without_caches(options.requests, options.rounds, options.simpy)
    found["with_caches"] = [with_caches(trace, options.rounds, options.dynamo) for trace in options.trace]
    found |= {"left_out": LEFT_OUT, "before": before, "after": machine()}
    print(
        f"load of the machine: {before['load'][0]} before, {found['after']['load'][0]} after, {before['cores']} cores"
    )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
