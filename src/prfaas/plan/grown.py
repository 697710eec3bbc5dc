"""PD clusters that grow within a budget: the homogeneous designs.

It knows what a rate needs in whole nodes; it does not know what the budget counts: nodes, accelerators or money.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from prfaas.core.throughput.site import Home, Site
from prfaas.core.throughput.split import Splits


def grown(site: Site, splits: Splits, budget: float, costs: Sequence[float]) -> tuple[int, ...]:
    """How many nodes each home has when it grows within `budget`: as the highest rate of all needs, the rest in
    turn."""
    whole = splits.at(len(site.lengths)).whole_s

    def needed(rate: float) -> list[int]:
        return [max(1, _nodes_for(home, s, rate)) for home, s in zip(site.homes, whole, strict=True)]

    def cost(nodes: Sequence[int]) -> float:
        return sum(n * c for n, c in zip(nodes, costs, strict=True))

    low, high = 0.0, 1e-6
    while cost(needed(high)) <= budget * (1 + 1e-9):
        low, high = high, high * 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cost(needed(middle)) <= budget * (1 + 1e-9) else (low, middle)
    nodes = needed(low)
    spare = True
    while spare:
        spare = False
        for at in range(len(nodes)):
            if cost(nodes) + costs[at] <= budget * (1 + 1e-9):
                nodes[at] += 1
                spare = True
    return tuple(nodes)


def _nodes_for(home: Home, prefill_s: float, rate: float) -> int:
    asked = rate * home.share
    return ceil(asked * prefill_s) + ceil(asked / home.decode_rate)
