"""The best use of prefill nodes and links: how much each PrfaaS cluster takes, of which length, from which PD cluster.

It knows rates and tables; it does not know thresholds' whys or whole nodes: those are `search`'s. One PrfaaS cluster,
or one class of lengths and one PD cluster, have closed forms (eq. 3); everything else is a `packing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from prfaas.core.throughput.equations import BITS, theta_prfaas
from prfaas.core.throughput.packing import Group, Option, Packed, Packing, Pattern
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Split, Splits

Shares = tuple[tuple[tuple[float, ...], ...], ...]
"""For each home, for each remote, the share of each bin that is prefilled there. What is missing to 1 stays at home."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the remotes can take: at most `rate` of all requests a second, so spread. `line`: the part of the limit that
    links are, the rest is compute: by the prices of the linear program, so what has no part in it has room."""

    rate: float
    shares: Shares
    line: float


class Away:
    """What the remotes of `site` can take when all bins from a cut on are theirs. `like`: of a site with the same
    links, so that what was found there is tried here first."""

    def __init__(self, site: Site, splits: Splits, like: Away | None = None) -> None:
        self.site, self.splits = site, splits
        self.homes = [at for at, home in enumerate(site.homes) if home.linked]
        self.closed = len(site.remotes) == 1 or (splits.formulas == "paper" and len(self.homes) == 1)
        self._rates: dict[int, float] = {}
        self._start: list[Pattern] = list(like._start) if like else []

    def rate(self, cut: int) -> float:
        """Requests a second of all lengths; inf where nothing is long. Never falls with the cut when exact."""
        if cut not in self._rates:
            self._rates[cut] = self._closed(self.splits.at(cut))[0] if self.closed else self._packed(cut).rate
        return self._rates[cut]

    def taken(self, cut: int) -> Taken:
        """The same with its spread."""
        split, bins = self.splits.at(cut), len(self.site.lengths)
        if self.closed:
            rate, parts, line = self._closed(split)
            rows = {at: [(0.0,) * cut + (part,) * (bins - cut) for part in parts] for at in self.homes}
            return Taken(rate, self._shares(rows), line)
        packed = self._packed(cut)
        if not packed.mix:
            return Taken(packed.rate, self._shares({}), 0.0)
        spread: dict[int, list[tuple[float, ...]]] = {}
        for group, at in enumerate(self.homes):
            options = self._remotes(at)
            classes = len(packed.mix[0][1][group])
            found = dict(zip(options, packed.shares(group, len(options), classes), strict=True))
            rows_of = [found.get(remote, [0.0] * classes) for remote in range(len(self.site.remotes))]
            long = [row if classes == bins - cut else row * (bins - cut) for row in rows_of]
            spread[at] = [(0.0,) * cut + tuple(row) for row in long]
        return Taken(packed.rate, self._shares(spread), sum(packed.worth[len(self.site.remotes) :]))

    def _closed(self, split: Split) -> tuple[float, list[float], float]:
        """Rate, the part of each remote, and the part of the limit that links are."""
        site = self.site
        shares = [site.homes[at].share for at in self.homes]
        offered = split.p * sum(shares)
        if not offered or not site.remotes:
            return inf, [0.0] * len(site.remotes), 0.0
        if len(site.remotes) == 1:
            computing = site.remotes[0].nodes / (split.long_s[0] * offered)
            links = [
                site.homes[at].links_bps[0] / (split.long_bytes * BITS * site.homes[at].share) for at in self.homes
            ]
            line = min(links) / split.p
            return min(computing, line), [1.0], float(line < computing)
        home = site.homes[self.homes[0]]
        each = [
            (theta_prfaas(r.nodes, s, bps, split.long_bytes), r.nodes / s)
            for r, s, bps in zip(site.remotes, split.long_s, home.links_bps, strict=True)
        ]
        theta = sum(t for t, _ in each)
        parts = [t / theta if theta else 0.0 for t, _ in each]
        thin = [part for part, (t, computing) in zip(parts, each, strict=True) if t < computing]
        return theta / offered, parts, sum(thin)

    def _packed(self, cut: int) -> Packed:
        """All bins from the cut on, or one class of them, fitted into remotes and links."""
        site, split = self.site, self.splits.at(cut)
        if not split.p or not self.homes:
            return Packed(inf, inf, (), ())
        paper = self.splits.formulas == "paper"
        weights = [split.p] if paper else site.lengths.weights[cut:]
        sizes = [split.long_bytes * BITS] if paper else [b * BITS for b in site.kv_bytes[cut:]]
        times = [[s] for s in split.long_s] if paper else [remote.prefill_s[cut:] for remote in site.remotes]
        groups = []
        for at in self.homes:
            options = tuple(
                Option(((remote, times[remote]), (self._row(at, remote), sizes))) for remote in self._remotes(at)
            )
            groups.append(Group([site.homes[at].share * w for w in weights], options))
        packing = Packing(groups, [_fitted(pattern, len(weights)) for pattern in self._start])
        packed = packing.solve(capacities(site))
        self._start = packing.known
        return packed

    def _remotes(self, home: int) -> list[int]:
        links = self.site.homes[home].links_bps
        return [at for at, bps in enumerate(links) if bps > 0 and self.site.remotes[at].nodes > 0]

    def _row(self, home: int, remote: int) -> int:
        return len(self.site.remotes) * (1 + home) + remote

    def _shares(self, rows: dict[int, list[tuple[float, ...]]]) -> Shares:
        nothing = [(0.0,) * len(self.site.lengths)] * len(self.site.remotes)
        return tuple(tuple(rows.get(at, nothing)) for at in range(len(self.site.homes)))


class Anywhere:
    """What all prefill nodes can take when each request may be prefilled at home or at any remote.

    `blind`: a request's length is not looked at (one class, of mean cost by the formulas); else each bin has its own
    best place, and that no rule by length can beat.
    """

    def __init__(self, site: Site, splits: Splits, *, blind: bool) -> None:
        self.site, self.blind = site, blind
        lengths = site.lengths
        if blind:
            all_long, all_short = splits.at(0), splits.at(len(lengths))
            self.weights: Sequence[float] = [1.0]
            sizes: Sequence[float] = [all_long.long_bytes * BITS]
            away: list[Sequence[float]] = [[s] for s in all_long.long_s]
            here: list[Sequence[float]] = [[s] for s in all_short.short_s]
        else:
            self.weights = lengths.weights
            sizes = [b * BITS for b in site.kv_bytes]
            away = [remote.prefill_s for remote in site.remotes]
            here = [home.prefill_s for home in site.homes]
        width = len(site.remotes)
        self.first_home = width * (1 + len(site.homes))
        groups = []
        for at, home in enumerate(site.homes):
            links = [Option(((k, away[k]), (width * (1 + at) + k, sizes))) for k in range(width)]
            own = Option(((self.first_home + at, here[at]),))
            groups.append(Group([home.share * w for w in self.weights], (*links, own)))
        self.packing = Packing(groups)

    def packed(self, n_p: Sequence[int]) -> Packed:
        """The best spread when the homes have so many prefill nodes."""
        return self.packing.solve([*capacities(self.site), *map(float, n_p)])

    def shares(self, packed: Packed) -> Shares:
        """For each home, for each remote, the share of each bin."""
        width, bins = len(self.site.remotes), len(self.site.lengths)
        if not packed.mix:
            return tuple(tuple((0.0,) * bins for _ in range(width)) for _ in self.site.homes)
        found = []
        for at in range(len(self.site.homes)):
            rows = packed.shares(at, width + 1, len(self.weights))[:width]
            found.append(tuple(tuple(row * bins if self.blind else row) for row in rows))
        return tuple(found)


def capacities(site: Site) -> list[float]:
    """Nodes of each remote, then for each home the bits a second from each remote."""
    return [*(float(remote.nodes) for remote in site.remotes), *(bps for home in site.homes for bps in home.links_bps)]


def _fitted(pattern: Pattern, classes: int) -> Pattern:
    """A pattern of another cut: the longest bins are the same ones, what is new takes the neighbour's option."""
    return tuple(
        picks[-classes:] if len(picks) >= classes else picks[:1] * (classes - len(picks)) + picks for picks in pattern
    )
