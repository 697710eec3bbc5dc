"""Designs side by side: the paper's, and what it must beat, each at its best threshold and whole nodes.

It knows what a design is; the best of each is found by `core.throughput`. A design's figures are by the paper's
formulas (one representative length a class) or exact (integrated over the lengths); its TTFT is always integrated, as
in Table 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from prfaas.core.throughput.equations import BITS, theta_pd_d, theta_pd_p
from prfaas.core.throughput.search import Search, Shape, whole_nodes
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Formulas, Splits
from prfaas.core.throughput.spread import Anywhere, Shares
from prfaas.plan.grown import grown
from prfaas.plan.loads import Loads, quantile, ttft

Binding = Literal["prfaas", "link", "pd_p", "pd_d"]


@dataclass(frozen=True, slots=True)
class Theta:
    """Requests a second of its own kind that each stage sustains; None where it has no such stage."""

    prfaas: float | None
    pd_p: float | None
    pd_d: float


@dataclass(frozen=True, slots=True)
class Design:
    """One design at its best. `rate`: Lambda_max, requests a second. What does not apply is None.

    `limits`: the stages that are the limit, first the one that more would help most; each has a full cluster or link.
    `busy`: the part of each cluster or link of a stage that is used at `rate`: of PrfaaS clusters and of PD clusters in
    file order, of links home by home. `offloaded`: share of requests prefilled away. TTFT is bare prefill time: no
    queue and no transfer is in it.
    """

    name: str
    site: Site
    rate: float
    threshold: int | None
    n_p: tuple[int, ...]
    theta: Theta
    limits: tuple[Binding, ...]
    shares: Shares
    busy: dict[Binding, tuple[float, ...]]
    ttft_mean_s: float
    ttft_p90_s: float
    offloaded: float
    egress_bps: float

    @property
    def binding(self) -> Binding:
        """The limit, or the first of them."""
        return self.limits[0]

    @property
    def used(self) -> dict[Binding, float]:
        """How busy the fullest cluster or link of each stage is; 1 less it is spare."""
        return {stage: max(parts) for stage, parts in self.busy.items()}

    @property
    def n_prfaas(self) -> int:
        """Nodes of all PrfaaS clusters."""
        return sum(remote.nodes for remote in self.site.remotes)

    @property
    def n_d(self) -> tuple[int, ...]:
        """Decode nodes of each pd cluster."""
        return tuple(home.nodes - n for home, n in zip(self.site.homes, self.n_p, strict=True))


class Designs:
    """The designs of one site, by one kind of formulas."""

    def __init__(self, site: Site, formulas: Formulas, splits: Splits | None = None) -> None:
        self.site, self.formulas = site, formulas
        self.splits = splits or Splits(site, formulas)
        self.search = Search(site, self.splits)

    def prfaas(self) -> Design:
        """Selective offloading: above a threshold to the PrfaaS clusters."""
        return self.of_shape("prfaas", self.search.best())

    def naive(self) -> Design:
        """All prefill remote, where a link leads; every PD node that has one decodes."""
        return self.of_shape("naive", self.search.with_cut(0), threshold=False)

    def of_shape(self, name: str, shape: Shape, *, threshold: bool = True) -> Design:
        """A design by threshold, at this shape."""
        split = self.splits.at(shape.cut)
        taken = self.search.away.taken(shape.cut)
        away = split.p * sum(home.share for home in self.site.homes if home.linked)
        least = min(shape.remote, shape.prefill, shape.decode)
        limits: tuple[Binding, ...] = ("pd_d",)
        if least == shape.remote:
            limits = _limits({"prfaas": 1 - taken.line, "link": taken.line})
        elif least == shape.prefill:
            limits = ("pd_p",)
        theta = Theta(
            shape.remote * away if away > 0 and shape.remote < inf else None,
            _theta_pd_p(shape.n_p, self._short(shape.cut)) if away < 1 else None,
            _theta_pd_d(self.site, shape.n_p),
        )
        cut = self.site.lengths.threshold(shape.cut) if threshold else None
        return self._made(name, shape.rate, cut, shape.n_p, theta, limits, taken.shares, shape.cut)

    def balanced(self, n_p: tuple[int, ...] | None = None) -> Design:
        """Length-blind over all prefill nodes, each with as much as it can. `n_p` left out: its own best nodes."""
        anywhere = Anywhere(self.site, self.splits, blind=True)

        def prefill(nodes: tuple[int, ...]) -> float:
            return anywhere.packed(nodes).rate

        if n_p is None:
            _, n_p = whole_nodes(self.site, prefill)
        packed = anywhere.packed(n_p)
        decode = _decode(self.site, n_p)
        whole, every = self.splits.at(len(self.site.lengths)), self.splits.at(0)
        remotes = [r.nodes / s if s else 0.0 for r, s in zip(self.site.remotes, every.long_s, strict=True)]
        links = [
            sum(home.links_bps[k] for home in self.site.homes) / (every.long_bytes * BITS)
            for k in range(len(self.site.remotes))
        ]
        width, own = len(self.site.remotes), len(packed.worth) - len(self.site.homes)
        prfaas, link, pd_p = packed.worth[:width], packed.worth[width:own], packed.worth[own:]
        limits: tuple[Binding, ...] = ("pd_d",)
        if packed.rate < decode:
            limits = _limits({"prfaas": sum(prfaas), "link": sum(link), "pd_p": sum(pd_p)})
        theta = Theta(
            sum(map(min, remotes, links)) if remotes else None,
            _theta_pd_p(n_p, whole.short_s),
            _theta_pd_d(self.site, n_p),
        )
        shares = anywhere.shares(packed)
        rate = min(packed.rate, decode)
        return self._made("balanced", rate, None, n_p, theta, limits, shares, None)

    def bound(self) -> float:
        """What no rule by length can exceed, whatever each PD cluster's whole nodes: the linear program's optimum."""
        anywhere = Anywhere(self.site, self.splits, blind=False)
        return whole_nodes(self.site, lambda nodes: anywhere.packed(nodes).rate)[0]

    def homogeneous(self, budget: float, costs: Sequence[float], name: str = "homogeneous") -> Design:
        """PD clusters alone, with more nodes for what the PrfaaS clusters were: in all at most `budget`, when a node of
        each costs so much."""
        site = self.site.alone(grown(self.site, self.splits, budget, costs))
        splits = Splits(site, self.formulas)
        search = Search(site, splits)
        shape = search.with_cut(len(site.lengths))
        return Designs(site, self.formulas, splits).of_shape(name, shape, threshold=False)

    def _short(self, cut: int) -> list[float]:
        split = self.splits.at(cut)
        return [
            short if home.linked else whole
            for home, short, whole in zip(self.site.homes, split.short_s, split.whole_s, strict=True)
        ]

    def _costs(self, cut: int | None) -> Site:
        """The site with costs as the formulas take them: by the paper's, all of a class cost the same. `cut` None:
        there is one class."""
        if self.formulas == "exact":
            return self.site
        bins = len(self.site.lengths)
        short, long = (self.splits.at(bins), self.splits.at(0)) if cut is None else (self.splits.at(cut),) * 2
        cut = 0 if cut is None else cut

        def flat(low: float, high: float) -> tuple[float, ...]:
            return (low,) * cut + (high,) * (bins - cut)

        remotes = (replace(r, prefill_s=flat(s, s)) for r, s in zip(self.site.remotes, long.long_s, strict=True))
        heres = zip(self.site.homes, short.short_s, short.whole_s, strict=True)
        homes = (replace(home, prefill_s=flat(*((s, s) if home.linked and cut else (w, w)))) for home, s, w in heres)
        return replace(self.site, kv_bytes=flat(0.0, long.long_bytes), remotes=tuple(remotes), homes=tuple(homes))

    def _made(
        self,
        name: str,
        rate: float,
        threshold: int | None,
        n_p: tuple[int, ...],
        theta: Theta,
        limits: tuple[Binding, ...],
        shares: Shares,
        cut: int | None,
    ) -> Design:
        site = self.site
        loads = Loads(self._costs(cut), shares)
        times = ttft(site, shares)
        n_d = [home.nodes - n for home, n in zip(site.homes, n_p, strict=True)]
        asked = [rate * home.share / home.decode_rate for home in site.homes]
        busy: dict[Binding, tuple[float, ...]] = {"pd_d": _parts(asked, n_d)}
        if sum(n_p):
            busy["pd_p"] = _parts([rate * seconds for seconds in loads.here], n_p)
        if site.remotes and loads.offloaded:
            busy["prfaas"] = _parts(
                [rate * seconds for seconds in loads.away], [remote.nodes for remote in site.remotes]
            )
            bits = [rate * bits for row in loads.links for bits in row]
            busy["link"] = _parts(bits, [bps for home in site.homes for bps in home.links_bps])
        return Design(
            name,
            site,
            rate,
            threshold,
            n_p,
            theta,
            limits,
            shares,
            busy,
            sum(w * s for s, w in times),
            quantile(times, 0.9),
            loads.offloaded,
            rate * loads.bits,
        )


def _decode(site: Site, n_p: Sequence[int]) -> float:
    return min((home.nodes - n) * home.decode_rate / home.share for home, n in zip(site.homes, n_p, strict=True))


def _theta_pd_p(n_p: Sequence[int], short_s: Sequence[float]) -> float | None:
    return sum(theta_pd_p(n, s) for n, s in zip(n_p, short_s, strict=True) if s) or None


def _theta_pd_d(site: Site, n_p: Sequence[int]) -> float:
    return sum(theta_pd_d(home.nodes - n, home.decode_rate) for home, n in zip(site.homes, n_p, strict=True))


def _limits(worth: dict[Binding, float]) -> tuple[Binding, ...]:
    """The stages that have a part in the limit, the largest first."""
    least = min(1e-6, max(worth.values()))
    return tuple(stage for stage in sorted(worth, key=lambda one: -worth[one]) if worth[stage] >= least)


def _parts(used: Sequence[float], there: Sequence[float]) -> tuple[float, ...]:
    """Of each, what is used of what is there; nothing of nothing."""
    return tuple(a / b if b else 0.0 for a, b in zip(used, there, strict=True))
