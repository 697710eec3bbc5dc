"""What a simulation says to people, as text.

It knows how figures are worded; it computes none.
"""

from __future__ import annotations

from math import floor, log10

from prfaas.sim.answer import BalanceAnswer, CompareAnswer, Compared, FindMaxAnswer, HostAnswer, simulate_answer
from prfaas.sim.run import RANGE, Outcome

SATURATED = "queues still grew at the end of arrivals: times depend on how long the run is"


def shown(value: float | None, form: str) -> str:
    """`value`, or a dash for what was not measured."""
    return "-" if value is None else format(value, form)


def offered_words(rate: float | None, bound: float) -> str:
    """The rate, and what it is of Lambda_max."""
    if rate is None:
        return "all requests at once; Lambda_max"
    return f"{rate:.3f} requests a second offered, {rate / bound:.0%} of Lambda_max"


def simulate_words(outcome: Outcome) -> str:
    """One run."""
    said = simulate_answer(outcome)
    bound = outcome.run.planned.bound
    lines = [
        f"{said.policy}, seed {said.seed}: {offered_words(said.offered_rps, bound)} ({bound:.3f})",
        f"{said.completed} of {said.arrived} requests completed; the {said.measured} after the warm-up are measured",
        *([f"{said.stuck} requests can never end: nothing is left to come that would"] if said.stuck else []),
        "",
        f"{'seconds':<20}{'mean':>9}{'p50':>9}{'p90':>9}{'p99':>9}",
    ]
    for name, times in (
        ("first token", said.ttft_s),
        ("each further token", said.tpot_s),
        ("last token", said.e2e_s),
        ("wait for prefill", said.queue_wait_s),
        ("exposed transfer", said.exposed_transfer_s),
    ):
        digits = 4 if name.startswith("each") else 2
        values = (f"{shown(value, f'.{digits}f'):>9}" for value in (times.mean, times.p50, times.p90, times.p99))
        lines.append(f"{name:<20}{''.join(values)}")
    if said.saturated:
        lines += ["", SATURATED]
    lines += [
        "",
        f"goodput {shown(said.goodput_rps, '.3f')} requests a second; prefilled away {shown(said.offloaded, '.1%')}; "
        f"found in caches {shown(said.hit_share, '.1%')}",
        f"egress {said.egress_gbps.mean:.2f} Gbps, peak {said.egress_gbps.peak:.2f}; busy: "
        + ", ".join(f"{name} {part:.0%}" for name, part in said.use.items()),
        *([] if said.host is None else [_host_words(said.host)]),
        "decisions: " + ", ".join(f"{reason} {count}" for reason, count in said.decisions.items()),
        f"moved {said.moved}, prefilled again {said.rescued}, placed again {said.retried}"
        + (f"; no room in a cache {said.no_room}" if said.no_room else "")
        + (f"; KV given up {said.expired}" if said.expired else ""),
        f"{said.events} events in {said.wall_s:.2f} s" + (", interrupted" if said.interrupted else ""),
        *said.notes,
    ]
    if said.balance is not None:
        lines += ["", *_balance_words(said.balance)]
    return "\n".join(lines) + "\n"


def _host_words(said: HostAnswer) -> str:
    return (
        f"from host memory {shown(said.hit_share, '.1%')}, waited {said.waited_s:.1f} s for it; moved there "
        f"{said.saved_bytes / 1e9:.0f} GB, back {said.fetched_bytes / 1e9:.0f} GB"
    )


def _balance_words(said: BalanceAnswer) -> list[str]:
    looks = ", ".join(f"{why} {count}" for why, count in said.looks.items())
    lines = [f"balance {said.rule}: {len(said.conversions)} conversions, {said.reversals} undone soon; looks: {looks}"]
    for one in said.conversions:
        done = "not done" if one.done_s is None else f"done at {one.done_s:.0f} s"
        lines.append(
            f"  {one.at_s:.0f} s: {one.node} to {one.to}, from {one.n_p} prefill and {one.n_d} decode: {one.why}, gain "
            f"{one.gain:.1%} of which {one.need:.1%} was needed; {done}"
        )
    lines += [f"  {one.at_s:.0f} s: threshold {one.before} to {one.tokens} tokens" for one in said.thresholds]
    return lines


def compare_words(said: CompareAnswer) -> str:
    """Policies side by side."""
    seeds = f"seed {said.seeds[0]}" if len(said.seeds) == 1 else f"seeds {said.seeds[0]} to {said.seeds[-1]}"
    sure = "95 % confidence"
    if said.replay:
        sure = "a trace is the same for every seed: no interval"
    elif len(said.seeds) == 1:
        sure = "one seed: no interval"
    offered = "all at once" if said.offered_rps is None else f"{said.offered_rps:.3f} requests a second"
    names = ("ttft_mean", "ttft_p90", "ttft_p99", "e2e_p90")
    lines = [
        f"{offered}, {seeds}; seconds, and in brackets by how much less than the first on the same requests ({sure})",
        f"{'':<12}" + "".join(f"{name:<28}" for name in names),
    ]
    for policy, row in said.compared.items():
        lines.append(f"{policy:<12}" + "".join(f"{_cell(row[name]):<28}" for name in names).rstrip())
    return "\n".join(lines) + "\n"


def _cell(one: Compared) -> str:
    if one.mean is None:
        return "-"
    if one.half is None:
        return f"{one.mean:.2f} ({one.less:+.1%})"
    return f"{one.mean:.2f} ± {one.half:.2f} ({one.less:+.1%} ± {one.less_half:.1%})"


def find_max_words(said: FindMaxAnswer, bound: float) -> str:
    """The highest rate, to the decimals that the search knows."""
    low, high = said.highest_rps or 0.0, said.missed_rps or RANGE * bound
    # rounded towards what was tried: the lower down, the higher up
    digits = max(0, floor(-log10(high - low)))
    ten = 10.0**digits
    least, most = f"{floor(low * ten) / ten:.{digits}f}", f"{-floor(-high * ten) / ten:.{digits}f}"
    name = f"{said.policy}: {said.slo}"
    if said.interrupted:
        met = "met at no rate yet" if said.highest_rps is None else f"met at {low:.3g} requests a second"
        missed = "missed at none yet" if said.missed_rps is None else f"missed at {high:.3g}"
        return f"{name} interrupted: {met}, {missed}\n"
    if said.edge == "low":
        return f"{name} not even at {most} requests a second, {high / bound:.1%} of Lambda_max, the lowest tried\n"
    share = f"{low / bound:.0%} of Lambda_max"
    if said.edge == "high":
        return f"{name} at more than {least} requests a second, {share}, the highest tried\n"
    return f"{name} up to {least} requests a second, {share}; not at {most}\n"
