"""`prfaas simulate`: what a plan's clusters do under queues, bursts, caches and faults."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import msgspec

from prfaas.cli.profileoptions import wrong
from prfaas.config.document import read_document
from prfaas.config.reader import read_topology
from prfaas.config.topology import Policy
from prfaas.config.units import Timeout
from prfaas.core.routing.catalog import DEFAULT, NAMES
from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import Trace
from prfaas.plan.planreader import read_plan
from prfaas.plan.trace import read_trace
from prfaas.sim.answer import CompareAnswer, as_json, compare_answer, find_max_answer, simulate_answer
from prfaas.sim.balance import RULES
from prfaas.sim.fromplan import Planned, planned
from prfaas.sim.fromtopology import is_topology, planned_topology
from prfaas.sim.page import write_report
from prfaas.sim.run import METRICS, Outcome, Run, highest_rate, perform, replay_ns
from prfaas.sim.scenario import Balanced, Scenario, Users, read_scenario, unbalanced
from prfaas.sim.setup import Setup
from prfaas.sim.words import compare_words, find_max_words, simulate_words

DEFAULT_LOAD = 0.85
DEFAULT_DURATION_NS = 3600 * 10**9
SEEDS = 5
MOST_RATE = 1e6
"""Requests a second: more would not end."""
OBJECTIVE = re.compile(r"(\w+) *<=? *(\S+)")


class Number(click.FloatRange):
    """A number from `least` (without it, if `above`) to `most`; neither nan nor inf."""

    def __init__(self, least: float, most: float, above: bool = False) -> None:
        super().__init__(least, most, min_open=above)
        begins = f"above {least:g}, at most" if above else f"from {least:g} to"
        self.expected = f"a number {begins} {most:,.0f}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """As click's. Raises ConfigError."""
        try:
            found = super().convert(value, param, ctx)
        except click.BadParameter:
            found = math.nan
        if not math.isfinite(found):
            raise wrong(param, value, self.expected)
        return found


@click.command("simulate")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--trace", type=click.Path(path_type=Path), help="Requests of this trace instead of the file's traffic.")
@click.option("--rate", type=Number(0, MOST_RATE, above=True), help="Requests a second.")
@click.option("--load", type=Number(0, 10, above=True), help="Rate as a share of Lambda_max.")
@click.option("--policy", type=click.Choice(NAMES), help=f"Who goes where. Left out: the topology's, or {DEFAULT}.")
@click.option(
    "--threshold", type=click.IntRange(min=0), help="Uncached tokens. Left out: the topology's, or the plan's best."
)
@click.option("--order", type=Number(0, 1000), help="Weight of size in queues. Left out: the topology's, or its own.")
@click.option("--scenario", type=click.Path(path_type=Path), help="How requests come and what goes wrong.")
@click.option("--balance", type=click.Choice(tuple(RULES)), help="Nodes change roles by this rule (docs/balance.md).")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True, help="Of all chance.")
@click.option("--duration", help="Simulated time in which requests come, such as 1h. Left out: 1h, or the trace's.")
@click.option("--json", "as_json_", is_flag=True, help="As JSON (docs/schemas/simulate.json).")
@click.option(
    "--report", type=click.Path(path_type=Path), help="Write a page with charts, and JSON, into this directory."
)
@click.option("--compare", help="Policies, with commas: side by side on the same requests.")
@click.option("--seeds", type=click.IntRange(1, 1000), help=f"Of --compare. Left out: {SEEDS}.")
@click.option("--find-max", is_flag=True, help="The highest rate that meets --slo.")
@click.option("--slo", help="Of --find-max, such as 'ttft_p90<5s'.")
def command(
    file: Path,
    trace: Path | None,
    rate: float | None,
    load: float | None,
    policy: str | None,
    threshold: int | None,
    order: float | None,
    scenario: Path | None,
    balance: str | None,
    seed: int,
    duration: str | None,
    as_json_: bool,
    report: Path | None,
    compare: str | None,
    seeds: int | None,
    find_max: bool,
    slo: str | None,
) -> None:
    """Simulate the clusters, links and traffic that FILE describes, with the decisions of production.

    FILE is a plan file, or a topology of emulated nodes (with --trace).
    """
    if rate is not None and load is not None:
        raise click.UsageError("got --rate and --load; expected one of them")
    if find_max != (slo is not None):
        raise click.UsageError("got one of --find-max and --slo; expected both, or none")
    if report is not None and (find_max or compare is not None):
        raise click.UsageError("got --report with --compare or --find-max; expected it for one run")
    if find_max and compare is not None:
        raise click.UsageError("got --find-max and --compare; expected one of them")
    if find_max and (rate is not None or load is not None):
        raise click.UsageError("got --find-max with --rate or --load; expected none, since it tries rates")
    if compare is not None and policy is not None:
        raise click.UsageError("got --compare and --policy; expected one of them")
    if seeds is not None and compare is None:
        raise click.UsageError("got --seeds without --compare; expected both, or --seed for one run")
    meets = _objective(slo) if slo is not None else None
    names = _names(compare) if compare is not None else []
    one, own = _planned(file, trace)
    said = Scenario() if scenario is None else read_scenario(scenario, one.setup)
    if balance is not None:
        said = _balanced(said, balance, one.setup)
    replay = isinstance(one.inputs.said.traffic.lengths, Trace)
    if scenario is not None:
        _check_arrivals(scenario, said, replay, find_max, rate is not None or load is not None)
    if replay and seeds is not None:
        raise click.UsageError("got --seeds with a trace; expected it without, since it is the same for every seed")
    if load is not None or (rate is None and not replay):
        rate = one.bound * (DEFAULT_LOAD if load is None else load)
    if own is not None:
        policy = own.kind if policy is None else policy
        threshold = own.threshold if threshold is None else threshold
        order = own.order if order is None else order
    policy = policy or DEFAULT
    run = Run(one, said, policy, seed, rate, _duration(duration, one, rate, replay), replay, threshold, order)
    if run.at_once and (rate is not None or find_max):
        raise click.UsageError(
            "got --rate, --load or --find-max with a trace whose rows come all at once; expected none of them"
        )
    if meets is not None and slo is not None:
        found = find_max_answer(run, slo, highest_rate(run, meets))
        _tell(as_json(found) if as_json_ else find_max_words(found, one.bound), found.interrupted)
        return
    if names:
        compared = _compared(run, names, seeds or SEEDS)
        _tell(as_json(compared) if as_json_ else compare_words(compared), compared.interrupted)
        return
    outcome = perform(run)
    if report is not None:
        click.echo(f"written: {write_report(outcome, report)}", err=True)
    _tell(as_json(simulate_answer(outcome)) if as_json_ else simulate_words(outcome), outcome.world.interrupted)


def _tell(text: str, interrupted: bool) -> None:
    """What there is; the exit code says whether it is all."""
    click.echo(text, nl=False)
    if interrupted:
        raise click.exceptions.Exit(1)


def _planned(file: Path, trace: Path | None) -> tuple[Planned, Policy | None]:
    """What is simulated, and a topology's own policy."""
    if is_topology(file):
        return planned_topology(file, trace), read_topology(file).policy
    said, document = read_plan(file)
    if trace is not None:
        lengths = Trace(file=str(trace.absolute()))
        for _ in read_trace(trace, lengths.block_tokens):  # its faults are its own, not those of a line of the plan
            pass
        traffic = msgspec.structs.replace(said.traffic, lengths=lengths, output=None)
        said = msgspec.structs.replace(said, traffic=traffic)
    return planned(Plan(read_inputs(said, document))), None


def _check_arrivals(scenario: Path, said: Scenario, replay: bool, find_max: bool, rated: bool) -> None:
    """Raises ConfigError where something else says already when requests come."""
    document = read_document(scenario)
    if replay and "arrivals" in document.value:
        raise document.error(("arrivals",), "got some with a trace; expected none, since its rows say when they come")
    if isinstance(said.arrivals, Users) and (rated or find_max):
        what = "--find-max" if find_max else "--rate or --load"
        raise document.error(("arrivals",), f"got users with {what}; expected it without: the rate comes of the users")


def _balanced(said: Scenario, rule: str, setup: Setup) -> Scenario:
    """With the rule; all else is as the scenario has it."""
    if why := unbalanced(setup):
        raise click.BadParameter(why, param_hint="--balance")
    return msgspec.structs.replace(said, balance=msgspec.structs.replace(said.balance or Balanced(), rule=rule))


def _duration(text: str | None, one: Planned, rate: float | None, replay: bool) -> int:
    if text is None:
        if not replay:
            return DEFAULT_DURATION_NS
        return replay_ns(one, rate)
    try:
        return int(Timeout.parse(f"{text}s" if text.replace(".", "", 1).isdigit() else text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--duration") from None


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in NAMES:
            raise click.BadParameter(f"got {name!r}; expected some of {', '.join(NAMES)}", param_hint="--compare")
    if len(set(names)) != len(names):
        raise click.BadParameter(f"got {text!r}; expected each policy once", param_hint="--compare")
    return names


def _objective(text: str) -> Callable[[Outcome], bool]:
    match = OBJECTIVE.fullmatch(text.strip())
    hint = f"expected a metric ({', '.join(METRICS)}) below a time, such as 'ttft_p90<5s'"
    if match is None or match[1] not in METRICS:
        raise click.BadParameter(f"got {text!r}; {hint}", param_hint="--slo")
    try:
        most = int(Timeout.parse(match[2])) / 1e9
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--slo") from None
    metric = METRICS[match[1]]
    return lambda outcome: outcome.tally.ttft.count > 0 and metric(outcome) <= most


def _compared(run: Run, names: Sequence[str], seeds: int) -> CompareAnswer:
    """Each with as many seeds. What Ctrl-C cuts short is left out, with the seed that it belongs to."""
    if run.replay:
        seeds = 1
    rows: list[list[Outcome]] = [[] for _ in names]
    interrupted = False
    for seed in range(run.seed, run.seed + seeds):
        outcomes = []
        try:
            for name in names:
                outcome = perform(replace(run, policy=name, seed=seed))
                if outcome.world.interrupted:
                    raise KeyboardInterrupt
                outcomes.append(outcome)
        except KeyboardInterrupt:
            interrupted = True
            click.echo(f"interrupted: {len(rows[0])} of {seeds} seeds", err=True)
            if not rows[0]:
                raise click.exceptions.Exit(1) from None
            break
        for row, outcome in zip(rows, outcomes, strict=True):
            row.append(outcome)
    return compare_answer(rows, interrupted)
