"""Whether it pays, in plain words. From the exact figures only.

It knows what decides: requests a second and money against the strongest alternatives, the link, and what was promised.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.plan.plan import Plan
from prfaas.plan.words import STAGES, bits, change, number, percent, tokens

LITTLE = 1.02
"""Ratios below this are called no gain: the figures are no better than that."""


def verdict(plan: Plan) -> Iterator[str]:
    """One sentence or two a line, most important first."""
    yield _pays(plan)
    yield from _money(plan)
    yield _threshold(plan)
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
        f"prefilled away, {sum(best.n_p)} PD nodes for prefill and {sum(best.n_d)} for decode."
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
    word = "less" if ours < same else "more"
    yield (
        f"A million tokens costs {number(ours, 3)}, {change(ours / same)}: {word} than {number(same, 3)} with PD "
        f"clusters alone. For as much money, links included, these would do {number(rate)} requests a second "
        f"(PrfaaS: {change(exact.prfaas.rate / rate)})."
    )


def _threshold(plan: Plan) -> str:
    exact = plan.exact
    blind = max(exact.balanced_own.rate, exact.balanced.rate)
    text = (
        f"Most of it is more and faster prefill: the same clusters without a threshold, each request anywhere, do "
        f"{number(blind)} at best; the threshold adds {change(exact.prfaas.rate / blind)} in steady throughput"
    )
    naive = exact.ratio(exact.naive)
    return f"{text}, and is {change(naive)} over all prefill away." if naive else f"{text}."


def _link(plan: Plan) -> Iterator[str]:
    best, margin = plan.exact.prfaas, plan.break_even
    if not best.offloaded:
        return
    used = max(best.used.get("link", 0.0), 0.0)
    text = f"KV takes {bits(best.egress_bps)}, {percent(used)} of the fullest link"
    if margin.bandwidth_bps is not None and margin.bandwidth_bps < plan.margins.links_bps:
        text += f"; below {bits(margin.bandwidth_bps)} over all links the gain is gone"
    yield text + "."


def _limit(plan: Plan) -> Iterator[str]:
    best = plan.exact.prfaas
    spare = [
        f"{STAGES[stage]} {percent(1 - used)}"
        for stage, used in best.used.items()
        if stage != best.binding and used < 0.995
    ]
    rest = f"; to spare: {', '.join(spare)}" if spare else ""
    yield f"The limit is {STAGES[best.binding]}{rest}."


def _promises(plan: Plan) -> Iterator[str]:
    said, exact = plan.inputs.said, plan.exact
    if said.slo.ttft_p90_ns is not None:
        most = said.slo.ttft_p90_ns / 1e9
        words = [
            f"{one.name} {'meets' if one.ttft_p90_s <= most else 'misses'} it ({number(one.ttft_p90_s)} s)"
            for one in exact.all()
        ]
        yield f"TTFT P90 of {said.slo.ttft_p90_ns.text()}, by prefill time alone: {', '.join(words)}."
    if said.traffic.rate is not None:
        load = said.traffic.rate / exact.prfaas.rate
        word = "is enough" if load < 1 else "is not enough"
        yield (
            f"{said.traffic.rate:g} requests a second come: prfaas {word} ({percent(load)} of what it sustains; "
            "waiting grows steeply above 80 to 85 %)."
        )
