"""A plan: every design by both kinds of formulas, what they cost, and where it stops paying.

It knows what is compared with what; how it is said is `report`'s and `answer`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from prfaas.core.throughput.split import Formulas
from prfaas.plan.designs import Design, Designs
from prfaas.plan.inputs import Inputs
from prfaas.plan.margins import BreakEven, Margins
from prfaas.plan.money import egress_per_request, per_million_tokens, price_per_hour

NAMES = ("prfaas", "homogeneous", "naive", "balanced")


@dataclass(frozen=True, slots=True)
class Compared:
    """The designs by one kind of formulas. `balanced` has the nodes of `prfaas`, to show what the threshold is worth;
    `balanced_own` its own best ones. `same_cost`: homogeneous for as much money, with prices only."""

    formulas: Formulas
    prfaas: Design
    homogeneous: Design
    naive: Design
    balanced: Design
    balanced_own: Design
    same_cost: Design | None

    def all(self) -> tuple[Design, ...]:
        """In the order in which they are shown."""
        same = () if self.same_cost is None else (self.same_cost,)
        return (self.prfaas, self.homogeneous, *same, self.naive, self.balanced)

    def ratio(self, other: Design) -> float | None:
        """Lambda_max of `prfaas` over that of another; None when that serves nothing."""
        return self.prfaas.rate / other.rate if other.rate else None


class Plan:
    """Everything that is asked of a plan, computed when it is asked for."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs
        self.site = inputs.site()
        homes = list(inputs.homes.values())
        clusters = inputs.said.clusters.values()
        self.gpus = sum(cluster.nodes * cluster.gpus for cluster in clusters)
        self.gpu_costs = [float(cluster.gpus) for cluster in homes]
        self.priced = all(cluster.price is not None for cluster in clusters)
        self.price_costs = [cluster.price or 0.0 for cluster in homes]

    @cached_property
    def paper(self) -> Compared:
        """By the paper's formulas."""
        return self._compared("paper")

    @cached_property
    def exact(self) -> Compared:
        """Integrated over the lengths."""
        return self._compared("exact")

    @cached_property
    def bound(self) -> float:
        """What no rule by length can exceed."""
        return Designs(self.site, "exact").bound()

    @cached_property
    def margins(self) -> Margins:
        """Changed sites."""
        return Margins(self.inputs, self.site, self.gpus, self.gpu_costs)

    @cached_property
    def break_even(self) -> BreakEven:
        """Where it stops paying."""
        return self.margins.break_even()

    @cached_property
    def price_ratio(self) -> float | None:
        """The price of a PrfaaS node over that of a PD node above which a request costs more than with as many
        homogeneous accelerators: where (N_prfaas * r + N_pd) / Lambda and N_homogeneous / Lambda_homogeneous meet. With
        prices, what KV costs on links counts too. None: it costs more at any."""
        ours, same = self.exact.prfaas, self.exact.homogeneous
        home = sum(one.nodes for one in ours.site.homes)
        nodes = sum(one.nodes for one in same.site.homes)
        pd_hour = (price_per_hour(same, self.inputs) or 0.0) / nodes
        egress = 3600 * egress_per_request(ours, self.inputs) / pd_hour if pd_hour else 0.0
        ratio = (ours.rate * (nodes / same.rate - egress) - home) / ours.n_prfaas
        return ratio if ratio > 0 else None

    def cost(self, design: Design) -> float | None:
        """Price of a million tokens; None without prices."""
        return per_million_tokens(design, self.inputs)

    def _compared(self, formulas: Formulas) -> Compared:
        designs = Designs(self.site, formulas)
        prfaas = designs.prfaas()
        same_cost = None
        if self.priced:
            same_cost = designs.homogeneous(self._spent(prfaas), self.price_costs, "homogeneous_same_cost")
        return Compared(
            formulas,
            prfaas,
            designs.homogeneous(self.gpus, self.gpu_costs),
            designs.naive(),
            designs.balanced(prfaas.n_p),
            designs.balanced(),
            same_cost,
        )

    def _spent(self, design: Design) -> float:
        """What an hour of it costs at Lambda_max, KV on priced links included."""
        return (price_per_hour(design, self.inputs) or 0.0) + 3600 * design.rate * egress_per_request(
            design, self.inputs
        )
