"""What a design costs: nodes by the hour, and bytes that cross a priced link."""

from __future__ import annotations

from prfaas.plan.designs import Design
from prfaas.plan.inputs import Inputs
from prfaas.plan.loads import Loads


def price_per_hour(design: Design, inputs: Inputs) -> float | None:
    """Of all nodes. None without prices."""
    total = 0.0
    names = (*(inputs.remotes if design.site.remotes else ()), *inputs.homes)
    counts = (*(remote.nodes for remote in design.site.remotes), *(home.nodes for home in design.site.homes))
    for name, count in zip(names, counts, strict=True):
        price = inputs.said.clusters[name].price
        if price is None:
            return None
        total += price * count
    return total


def egress_per_request(design: Design, inputs: Inputs) -> float:
    """What a mean request's KV costs on priced links."""
    if not design.site.remotes:
        return 0.0
    loads, total = Loads(design.site, design.shares), 0.0
    for home, row in zip(inputs.homes, loads.links, strict=True):
        for remote, bits in zip(inputs.remotes, row, strict=True):
            link = inputs.said.link(remote, home)
            total += bits / 8e9 * (link.price or 0.0 if link else 0.0)
    return total


def per_million_tokens(design: Design, inputs: Inputs) -> float | None:
    """Price of a million tokens, of prompts (cached ones included) and answers, at Lambda_max. None without prices."""
    hour = price_per_hour(design, inputs)
    if hour is None or not design.rate:
        return None
    request = hour / 3600 / design.rate + egress_per_request(design, inputs)
    return request * 1e6 / (inputs.workload.mean_context + inputs.workload.output)
