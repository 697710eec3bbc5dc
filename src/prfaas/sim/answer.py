"""What `prfaas simulate --json` says.

It knows the shape, which is a promise (docs/schemas/simulate.json); it computes nothing but means and differences.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from prfaas.sim.balance import Balance, Step
from prfaas.sim.run import METRICS, Found, Outcome, Run, interval
from prfaas.sim.stats import Histogram
from prfaas.sim.tiers import TieredPrefixes
from prfaas.sim.world import World

Amount = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=0)]
Share = Annotated[float, Meta(ge=0, le=1)]


class Times(Struct, frozen=True, kw_only=True):
    """Seconds; null where nothing was measured."""

    mean: Amount | None
    p50: Amount | None
    p90: Amount | None
    p99: Amount | None


class Egress(Struct, frozen=True, kw_only=True):
    """Over all links. `peak`: the largest second."""

    mean: Amount
    peak: Amount


class Conversion(Struct, frozen=True, kw_only=True):
    """A node that changed its role, or was to. `at_s`: when it was decided; `drained_s`: when nothing ran there any
    more; `done_s`: when it took work in its new role, None: not. `n_p`, `n_d`: nodes of each role before; `target`: the
    best number of prefill nodes. Rates: requests a second of the whole mix, before and after."""

    at_s: Amount
    node: str
    to: str
    why: Annotated[str, Meta(description="Why it was decided; or why it came to nothing.")]
    n_p: Count
    n_d: Count
    target: Count
    rate_rps: Amount
    step_rps: Amount
    gain: float
    need: float
    drained_s: Amount | None
    done_s: Amount | None


class Retune(Struct, frozen=True, kw_only=True):
    """The threshold is `tokens` from then on."""

    at_s: Amount
    tokens: Count
    before: Count
    rate_rps: Amount
    before_rps: Amount


class Staff(Struct, frozen=True, kw_only=True):
    """Nodes that take work from then on, by role."""

    at_s: Amount
    prefill: Count
    decode: Count


class BalanceAnswer(Struct, frozen=True, kw_only=True):
    """What came of role balance. `reversals`: conversions that undo the one before within two hours. `looks`: how often
    which reason was found."""

    rule: str
    conversions: tuple[Conversion, ...]
    reversals: Count
    thresholds: tuple[Retune, ...]
    staff: tuple[Staff, ...]
    looks: dict[str, Count]


class HostAnswer(Struct, frozen=True, kw_only=True):
    """What host tiers did from the start on, all clusters together."""

    hit_share: Annotated[Share | None, Meta(description="Share of prompt tokens, landings too, that came from there.")]
    saved_bytes: Annotated[Count, Meta(description="Moved to hosts.")]
    fetched_bytes: Annotated[Count, Meta(description="Moved back.")]
    lost_bytes: Annotated[
        Count, Meta(description="Evicted without a copy, since a host had no room, for cold snapshots no free room.")
    ]
    waited_s: Annotated[Amount, Meta(description="How long prefill nodes waited for it, together.")]


class SimulateAnswer(Struct, frozen=True, kw_only=True):
    """One run. All but `wall_s` is the same for the same seed."""

    policy: str
    seed: int
    offered_rps: Annotated[
        Amount | None, Meta(description="Requests a second that came; null of a trace whose rows come all at once.")
    ]
    arrived: Annotated[Count, Meta(description="Requests.")]
    completed: Annotated[Count, Meta(description="Requests whose last token was made.")]
    stuck: Annotated[Count, Meta(description="Requests that can never end: nothing is left to come that would.")]
    measured: Annotated[Count, Meta(description="Completed requests that the distributions are of: after the warm-up.")]
    ttft_s: Annotated[Times, Meta(description="To the first token.")]
    tpot_s: Annotated[Times, Meta(description="Of each further token.")]
    e2e_s: Annotated[Times, Meta(description="To the last token.")]
    queue_wait_s: Annotated[Times, Meta(description="Until prefill began.")]
    exposed_transfer_s: Annotated[Times, Meta(description="From the end of prefill until the KV was there.")]
    goodput_rps: Annotated[
        Amount | None,
        Meta(
            description="Requests a second that ended between the warm-up and the end of arrivals (of a trace that is "
            "replayed whole: its last answer) and met the plan's `slo`; null where nothing was measured."
        ),
    ]
    saturated: Annotated[
        bool,
        Meta(
            description="Queues still grew at the end: in the second half of the arrivals fewer requests ended than "
            "came, by more than 5 % and more than chance."
        ),
    ]
    egress_gbps: Annotated[Egress, Meta(description="KV over links.")]
    offloaded: Annotated[
        Share | None, Meta(description="Share of measured requests that was prefilled away; null of none.")
    ]
    hit_share: Annotated[
        Share | None, Meta(description="Share of prompt tokens found in a prefix cache; null where none were measured.")
    ]
    use: Annotated[dict[str, Amount], Meta(description="By cluster: the part of its prefill nodes that was busy.")]
    decisions: Annotated[dict[str, Count], Meta(description="By reason.")]
    moved: Annotated[Count, Meta(description="Requests that an idle node of another cluster took.")]
    rescued: Annotated[Count, Meta(description="Requests prefilled again because their KV was stuck.")]
    retried: Annotated[Count, Meta(description="Requests placed again because of a fault.")]
    no_room: Annotated[
        Count,
        Meta(
            description="Prefills and landings for which a cache had no room: nothing was reused, nothing will be kept."
        ),
    ]
    expired: Annotated[
        Count, Meta(description="Transfers that had not landed when the sender's lease ended, so that KV was lost.")
    ]
    copied: Annotated[Count, Meta(description="Prefixes that were copied from another cluster first.")]
    host: Annotated[HostAnswer | None, Meta(description="Host tiers of the caches; null where there are none.")]
    balance: Annotated[BalanceAnswer | None, Meta(description="Role changes; null where they are not simulated.")]
    simulated_s: Annotated[Amount, Meta(description="Until the last request ended.")]
    notes: Annotated[
        tuple[str, ...],
        Meta(description="Faults that did not do what the scenario says, or began after the last request."),
    ]
    interrupted: Annotated[bool, Meta(description="Ended early by Ctrl-C; what was computed is here.")]
    events: Annotated[Count, Meta(description="Things that happened.")]
    wall_s: Annotated[Amount, Meta(description="How long the run took here.")]


class Compared(Struct, frozen=True, kw_only=True):
    """A metric of one policy over all seeds. `half`: half of the 95 % confidence interval, null of one run. `less`: by
    how much it is below that of the first policy on the same requests, as a part of the latter, with `less_half`. Null
    where nothing was measured."""

    mean: Amount | None
    half: Amount | None
    less: float | None
    less_half: Amount | None


class CompareAnswer(Struct, frozen=True, kw_only=True):
    """Policies on the same requests. `compared`: by policy and metric (seconds). `replay`: of a trace, which is the
    same for every seed. `interrupted`: by Ctrl-C; `seeds` are those that every policy ran with."""

    offered_rps: Amount | None
    seeds: tuple[int, ...]
    replay: bool
    interrupted: bool
    compared: dict[str, dict[str, Compared]]


class Tried(Struct, frozen=True, kw_only=True):
    """A rate, and whether it met the objective."""

    rate: Amount
    met: bool


class FindMaxAnswer(Struct, frozen=True, kw_only=True):
    """The highest rate that meets an objective, between 0 and 1.5 times Lambda_max."""

    policy: str
    seed: int
    slo: str
    highest_rps: Annotated[Amount | None, Meta(description="The highest tried that met it; null: none did.")]
    missed_rps: Annotated[Amount | None, Meta(description="The lowest tried that did not; null: all did.")]
    edge: Annotated[
        Literal["low", "high"] | None,
        Meta(
            description="The end of the range that the search ran into: low, if no rate met it; high, if every one did."
        ),
    ]
    tried: tuple[Tried, ...]
    interrupted: Annotated[bool, Meta(description="Ended early by Ctrl-C; the two rates are those known by then.")]


def simulate_answer(outcome: Outcome) -> SimulateAnswer:
    """One run."""
    run, tally, world = outcome.run, outcome.tally, outcome.world
    measured = tally.ttft.count
    return SimulateAnswer(
        policy=run.policy,
        seed=run.seed,
        offered_rps=tally.arrived * 1e9 / max(1, outcome.arrivals_ns) if world.closed else run.offered,
        arrived=tally.arrived,
        completed=tally.ended,
        stuck=world.stuck,
        measured=measured,
        ttft_s=_times(tally.ttft),
        tpot_s=_times(tally.tpot),
        e2e_s=_times(tally.whole),
        queue_wait_s=_times(tally.queued),
        exposed_transfer_s=_times(tally.exposed),
        goodput_rps=outcome.goodput,
        saturated=outcome.saturated,
        egress_gbps=Egress(mean=outcome.egress_bps / 1e9, peak=outcome.peak_bps / 1e9),
        offloaded=tally.offloaded / measured if measured else None,
        hit_share=_hit_share(outcome),
        use=outcome.use(),
        decisions=dict(sorted(tally.reasons.items())),
        moved=tally.moved,
        rescued=tally.rescued,
        retried=tally.retried,
        no_room=sum(cache.pool.refused for cache in world.caches),
        expired=tally.expired,
        copied=tally.copied,
        host=_host(world),
        balance=None if world.balance is None else _balance(world.balance),
        simulated_s=world.now_ns / 1e9,
        notes=tuple(world.notes),
        interrupted=world.interrupted,
        events=world.events,
        wall_s=outcome.wall_s,
    )


def _host(world: World) -> HostAnswer | None:
    tiers = [cache for cache in world.caches if isinstance(cache, TieredPrefixes)]
    host = world.setup.cache.host if world.setup.cache else None
    if host is None:
        return None
    asked = sum(tier.pool.asked_tokens for tier in tiers)
    return HostAnswer(
        hit_share=sum(tier.pool.host_tokens for tier in tiers) / asked if asked else None,
        saved_bytes=sum(tier.pool.saved_blocks for tier in tiers) * host.block_bytes,
        fetched_bytes=sum(tier.pool.fetched_blocks for tier in tiers) * host.block_bytes,
        lost_bytes=sum(tier.pool.lost_blocks for tier in tiers) * host.block_bytes,
        waited_s=sum(tier.waited_ns for tier in tiers) / 1e9,
    )


def _hit_share(outcome: Outcome) -> float | None:
    """0 without caches."""
    tally = outcome.tally
    if tally.prompt_tokens:
        return tally.cached_tokens / tally.prompt_tokens
    return None if outcome.world.caches or not tally.ttft.count else 0.0


REVERSAL_NS = 7200 * 10**9


def _balance(balance: Balance) -> BalanceAnswer:
    done = [one for one in balance.steps if one.done_ns >= 0]
    return BalanceAnswer(
        rule=balance.setup.rule,
        conversions=tuple(_conversion(one) for one in balance.steps),
        reversals=sum(a.to != b.to and b.at_ns - a.at_ns <= REVERSAL_NS for a, b in pairwise(done)),
        thresholds=tuple(
            Retune(
                at_s=at_ns / 1e9,
                tokens=one.tokens,
                before=one.before,
                rate_rps=one.rate_rps,
                before_rps=one.before_rps,
            )
            for at_ns, one in balance.tuned
        ),
        staff=tuple(Staff(at_s=at_ns / 1e9, prefill=n_p, decode=n_d) for at_ns, n_p, n_d in balance.staffs),
        looks=dict(sorted(balance.looks.items())),
    )


def _conversion(one: Step) -> Conversion:
    why = one.judged
    return Conversion(
        at_s=one.at_ns / 1e9,
        node=one.node,
        to=one.to,
        why=one.cause or why.why,
        n_p=why.n_p,
        n_d=why.n_d,
        target=why.target,
        rate_rps=why.rate_rps,
        step_rps=why.step_rps,
        gain=why.gain,
        need=why.need,
        drained_s=one.drained_ns / 1e9 if one.drained_ns >= 0 else None,
        done_s=one.done_ns / 1e9 if one.done_ns >= 0 else None,
    )


def compare_answer(outcomes: Sequence[Sequence[Outcome]], interrupted: bool = False) -> CompareAnswer:
    """`outcomes[p][s]`: of policy p with seed s, the same seeds for each."""
    first = outcomes[0]
    compared: dict[str, dict[str, Compared]] = {}
    for runs in outcomes:
        row = compared.setdefault(runs[0].run.policy, {})
        for name, metric in METRICS.items():
            if not all(one.tally.ttft.count for one in (*runs, *first)):
                row[name] = Compared(mean=None, half=None, less=None, less_half=None)
                continue
            values, base = [metric(one) for one in runs], [metric(one) for one in first]
            less = [1 - value / other if other else 0.0 for value, other in zip(values, base, strict=True)]
            of, by = interval(values), interval(less)
            row[name] = Compared(mean=of.mean, half=of.half, less=by.mean, less_half=by.half)
    return CompareAnswer(
        offered_rps=first[0].run.offered,
        seeds=tuple(one.run.seed for one in first),
        replay=first[0].run.replay,
        interrupted=interrupted,
        compared=compared,
    )


def find_max_answer(run: Run, slo: str, found: Found) -> FindMaxAnswer:
    """What a search found. One that was cut short has run into no end."""
    whole = not found.interrupted
    edge: Literal["low", "high"] | None = None
    if whole and found.met is None:
        edge = "low"
    elif whole and found.missed is None:
        edge = "high"
    return FindMaxAnswer(
        policy=run.policy,
        seed=run.seed,
        slo=slo,
        highest_rps=found.met,
        missed_rps=found.missed,
        edge=edge,
        tried=tuple(Tried(rate=at, met=met) for at, met in found.tried),
        interrupted=found.interrupted,
    )


def as_json(said: Struct) -> str:
    """As JSON text, numbers to six significant digits."""
    text = msgspec.json.encode(_rounded(msgspec.to_builtins(said)))
    return msgspec.json.format(text, indent=2).decode() + "\n"


def _times(values: Histogram) -> Times:
    if not values.count:
        return Times(mean=None, p50=None, p90=None, p99=None)
    p50, p90, p99 = (values.quantile(part) / 1e9 for part in (0.5, 0.9, 0.99))
    return Times(mean=values.mean / 1e9, p50=p50, p90=p90, p99=p99)


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
