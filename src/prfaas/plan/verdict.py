"""Whether it pays, in plain words. From the exact figures only.

It knows what decides: requests a second and money against the strongest alternatives, the link, and what was promised.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.plan.designs import Binding, Design
from prfaas.plan.plan import Plan
from prfaas.plan.words import STAGES, bits, change, count, number, percent, times, tokens

LITTLE = 1.02
"""Ratios below this are called no gain: the figures are no better than that."""
NEARLY = 0.9995
"""What differs by less is written as the same."""
FULL = 0.9995
"""Used parts above this have nothing left."""


def verdict(plan: Plan) -> Iterator[str]:
    """One sentence or two a line, most important first."""
    yield _pays(plan)
    yield from _money(plan)
    yield from _threshold(plan)
    yield from _link(plan)
    yield from _limit(plan)
    yield from _promises(plan)


def _pays(plan: Plan) -> str:
    exact = plan.exact
    best, ratio = exact.prfaas, exact.prfaas.rate / exact.homogeneous.rate
    shape = (
        f"{number(best.rate)} requests a second against {number(exact.homogeneous.rate)} with as many accelerators "
        f"in PD clusters alone ({change(ratio)})"
    )
    if ratio < LITTLE:
        return f"PrfaaS brings nothing in throughput: {shape}."
    if not best.offloaded:
        return f"Nothing should be offloaded: {shape}."
    return (
        f"PrfaaS brings more throughput: {shape}, with prompts above {tokens(best.threshold)} uncached tokens "
        f"prefilled away, {count(sum(best.n_p), 'PD node')} for prefill and {sum(best.n_d)} for decode."
    )


def _money(plan: Plan) -> Iterator[str]:
    exact = plan.exact
    ours, same = plan.cost(exact.prfaas), plan.cost(exact.homogeneous)
    if ours is None or same is None or exact.same_cost is None:
        if plan.price_ratio is not None:
            yield (
                "Without prices this says nothing of money: a request costs less as long as a PrfaaS node costs less "
                f"than {number(plan.price_ratio)} PD nodes."
            )
        return
    rate = exact.same_cost.rate
    word = "as much as" if abs(ours / same - 1) < 1 - NEARLY else "less than" if ours < same else "more than"
    yield (
        f"A million tokens costs {number(ours, 3)}, {change(ours / same)}: {word} {number(same, 3)} with PD "
        f"clusters alone. For as much money, links included, these would do {number(rate)} requests a second "
        f"(PrfaaS: {change(exact.prfaas.rate / rate)})."
    )


def _threshold(plan: Plan) -> Iterator[str]:
    exact = plan.exact
    best, blind = exact.prfaas.rate, max(exact.balanced_own.rate, exact.balanced.rate)
    without = "the same clusters without a threshold, each request anywhere, do"
    if best / exact.homogeneous.rate < LITTLE:
        if blind > best * LITTLE:
            more = _than(blind / best)
            yield f"Without a threshold, each request anywhere, these clusters do {number(blind)} ({more})."
    elif best < blind * NEARLY:
        yield (
            f"A threshold is not what brings it: {without} {number(blind)} at best, {_than(blind / best)}. "
            "Send by load here, not by length."
        )
    else:
        naive = exact.ratio(exact.naive)
        over = f", and is {change(naive)} over all prefill away" if naive and naive < 10 else ""
        most = blind - exact.homogeneous.rate >= best - blind
        adds = "adds nothing" if best < blind / NEARLY else f"adds {change(best / blind)}"
        yield (
            f"Most of it is {'more and faster prefill' if most else 'the threshold'}: {without} {number(blind)} at "
            f"best; the threshold {adds} in steady throughput{over}."
        )
    if best * LITTLE < plan.bound:
        yield f"Rules by length that are no one threshold for all could do up to {number(plan.bound)}."


def _than(ratio: float) -> str:
    return f"{change(ratio)} against prfaas"


def _link(plan: Plan) -> Iterator[str]:
    best, least, wide = plan.exact.prfaas, plan.break_even.bandwidth_bps, plan.margins.links_bps
    if best.offloaded:
        text = f"KV takes {bits(best.egress_bps)}, {percent(best.used.get('link', 0.0))} of the fullest link"
        gone = f"; below {bits(least)} over all links the gain is gone" if least is not None and least < wide else ""
        yield f"{text}{gone}."
    if least is not None and least >= wide:
        yield f"With more than {bits(least)} over all links there would be a gain."


def _limit(plan: Plan) -> Iterator[str]:
    best = plan.exact.prfaas
    limits = " and ".join(STAGES[stage] + _full(plan, best, stage) for stage in best.limits)
    spare = [
        f"{STAGES[stage]} {percent(1 - used)}"
        for stage, used in best.used.items()
        if stage not in best.limits and used < 0.995
    ]
    rest = f"; to spare: {', '.join(spare)}" if spare else ""
    yield f"The limit is {limits}{rest}."


def _full(plan: Plan, best: Design, stage: Binding) -> str:
    """Which clusters or links of a stage are full, where there are several."""
    remotes, homes = list(plan.inputs.remotes), list(plan.inputs.homes)
    names = {"prfaas": remotes, "link": [f"{remote} -> {home}" for home in homes for remote in remotes]}
    parts = best.busy[stage]
    full = [name for name, part in zip(names.get(stage, homes), parts, strict=True) if part >= FULL]
    return f" ({', '.join(full)})" if len(parts) > 1 and full else ""


def _promises(plan: Plan) -> Iterator[str]:
    said, exact = plan.inputs.said, plan.exact
    if said.slo.ttft_p90_ns is not None:
        most = said.slo.ttft_p90_ns / 1e9
        words = [
            f"{one.name} {'meets' if one.ttft_p90_s <= most else 'misses'} it ({number(one.ttft_p90_s)} s)"
            for one in exact.all()
        ]
        yield f"TTFT P90 of {said.slo.ttft_p90_ns.text()}, by prefill time alone: {', '.join(words)}."
    if said.slo.tpot_ns is not None:
        words = [
            f"{name} {'meets' if plan.inputs.meets_tpot(name) else 'misses'} it "
            f"({number(plan.inputs.step_ns(name) / 1e6)} ms with a batch of {batch})"
            for name, batch in plan.inputs.batches.items()
        ]
        yield f"TPOT of {said.slo.tpot_ns.text()}, by the decode step: {', '.join(words)}."
    if said.traffic.rate is not None:
        load = said.traffic.rate / exact.prfaas.rate
        word = "is enough" if load < 1 else "is not enough"
        yield (
            f"{said.traffic.rate:g} requests a second come: prfaas {word} ({times(load)} what it sustains; "
            "waiting grows steeply above 80 to 85 %)."
        )
