"""What `prfaas simulate --json` says.

It knows the shape, which is a promise (docs/schemas/simulate.json); it computes nothing but means and differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from prfaas.sim.run import METRICS, Outcome, interval
from prfaas.sim.stats import Histogram

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Times(Struct, frozen=True, kw_only=True):
    """Seconds."""

    mean: Amount
    p50: Amount
    p90: Amount
    p99: Amount


class Egress(Struct, frozen=True, kw_only=True):
    """Over all links. `peak`: the largest second."""

    mean: Amount
    peak: Amount


class SimulateAnswer(Struct, frozen=True, kw_only=True):
    """One run. All but `wall_s` is the same for the same seed."""

    policy: str
    seed: int
    offered_rps: Annotated[Amount, Meta(description="Requests a second that came.")]
    arrived: Annotated[Count, Meta(description="Requests.")]
    completed: Annotated[Count, Meta(description="Requests whose last token was made.")]
    measured: Annotated[Count, Meta(description="Completed requests that the distributions are of: after the warm-up.")]
    ttft_s: Annotated[Times, Meta(description="To the first token.")]
    tpot_s: Annotated[Times, Meta(description="Of each further token.")]
    e2e_s: Annotated[Times, Meta(description="To the last token.")]
    queue_wait_s: Annotated[Times, Meta(description="Until prefill began.")]
    exposed_transfer_s: Annotated[Times, Meta(description="From the end of prefill until the KV was there.")]
    goodput_rps: Annotated[Amount, Meta(description="Measured requests a second that met the plan's `slo`.")]
    egress_gbps: Annotated[Egress, Meta(description="KV over links.")]
    offloaded: Annotated[Share, Meta(description="Share of measured requests that was prefilled away.")]
    hit_share: Annotated[Share, Meta(description="Share of prompt tokens found in a prefix cache.")]
    use: Annotated[dict[str, Amount], Meta(description="By cluster: the part of its prefill nodes that was busy.")]
    decisions: Annotated[dict[str, Count], Meta(description="By reason.")]
    moved: Annotated[Count, Meta(description="Requests that an idle node of another cluster took.")]
    rescued: Annotated[Count, Meta(description="Requests prefilled again because their KV was stuck.")]
    retried: Annotated[Count, Meta(description="Requests placed again because of a fault.")]
    simulated_s: Annotated[Amount, Meta(description="Until the last request ended.")]
    interrupted: Annotated[bool, Meta(description="Ended early by Ctrl-C; what was computed is here.")]
    events: Annotated[Count, Meta(description="Things that happened.")]
    wall_s: Annotated[Amount, Meta(description="How long the run took here.")]


class Compared(Struct, frozen=True, kw_only=True):
    """A metric of one policy over all seeds. `half`: half of the 95 % confidence interval. `less`: by how much it is
    below that of the first policy on the same requests, as a part of the latter, with `less_half`."""

    mean: Amount
    half: Amount
    less: float
    less_half: Amount


class CompareAnswer(Struct, frozen=True, kw_only=True):
    """Policies on the same requests. `compared`: by policy and metric (seconds)."""

    offered_rps: Amount
    seeds: tuple[int, ...]
    compared: dict[str, dict[str, Compared]]


class Tried(Struct, frozen=True, kw_only=True):
    """A rate, and whether it met the objective."""

    rate: Amount
    met: bool


class FindMaxAnswer(Struct, frozen=True, kw_only=True):
    """The highest rate that meets an objective."""

    policy: str
    seed: int
    slo: str
    highest_rps: Amount
    tried: tuple[Tried, ...]


def simulate_answer(outcome: Outcome) -> SimulateAnswer:
    """One run."""
    run, tally, world = outcome.run, outcome.tally, outcome.world
    measured = tally.ttft.count
    return SimulateAnswer(
        policy=run.policy,
        seed=run.seed,
        offered_rps=tally.arrived * 1e9 / run.duration_ns if world.closed else run.offered,
        arrived=tally.arrived,
        completed=tally.ended,
        measured=measured,
        ttft_s=_times(tally.ttft),
        tpot_s=_times(tally.tpot),
        e2e_s=_times(tally.whole),
        queue_wait_s=_times(tally.queued),
        exposed_transfer_s=_times(tally.exposed),
        goodput_rps=outcome.goodput,
        egress_gbps=Egress(mean=outcome.egress_bps / 1e9, peak=outcome.peak_bps / 1e9),
        offloaded=tally.offloaded / measured if measured else 0.0,
        hit_share=tally.cached_tokens / tally.prompt_tokens if tally.prompt_tokens else 0.0,
        use=outcome.use(),
        decisions=dict(sorted(tally.reasons.items())),
        moved=tally.moved,
        rescued=tally.rescued,
        retried=tally.retried,
        simulated_s=world.now_ns / 1e9,
        interrupted=world.interrupted,
        events=world.events,
        wall_s=outcome.wall_s,
    )


def compare_answer(outcomes: Sequence[Sequence[Outcome]]) -> CompareAnswer:
    """`outcomes[p][s]`: of policy p with seed s, the same seeds for each."""
    first = outcomes[0]
    compared: dict[str, dict[str, Compared]] = {}
    for runs in outcomes:
        row = compared.setdefault(runs[0].run.policy, {})
        for name, metric in METRICS.items():
            values, base = [metric(one) for one in runs], [metric(one) for one in first]
            less = [1 - value / other if other else 0.0 for value, other in zip(values, base, strict=True)]
            of, by = interval(values), interval(less)
            row[name] = Compared(mean=of.mean, half=of.half, less=by.mean, less_half=by.half)
    return CompareAnswer(
        offered_rps=first[0].run.offered, seeds=tuple(one.run.seed for one in first), compared=compared
    )


def as_json(said: Struct) -> str:
    """As JSON text, numbers to six significant digits."""
    text = msgspec.json.encode(_rounded(msgspec.to_builtins(said)))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _times(values: Histogram) -> Times:
    p50, p90, p99 = (values.quantile(part) / 1e9 for part in (0.5, 0.9, 0.99))
    return Times(mean=values.mean / 1e9, p50=p50, p90=p90, p99=p99)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
