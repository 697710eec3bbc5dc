"""What a threshold makes of the lengths: shares, and the mean cost of a long and of a short request.

Two ways to take the mean. The paper's: one representative length a class, T(E[L | class]). Exact: the integral,
E[T(L) | class]. Everything after it is the same for both.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from prfaas.core.throughput.site import Site

Formulas = Literal["paper", "exact"]


@dataclass(frozen=True, slots=True)
class Split:
    """`cut`: bins that stay. `p`: share that is long. `long_s`: prefill seconds of a long request at each remote;
    `short_s`: of a short one at each home; `whole_s`: of any request at each home. `long_bytes`: KV of a long one.
    A class without requests costs 0."""

    cut: int
    p: float
    l_long: float
    l_short: float
    long_s: tuple[float, ...]
    short_s: tuple[float, ...]
    whole_s: tuple[float, ...]
    long_bytes: float


class Splits:
    """The splits of `site` at every cut, 0 (all long) to `len(lengths)` (all short)."""

    def __init__(self, site: Site, formulas: Formulas) -> None:
        self.site = site
        self.formulas = formulas
        lengths = site.lengths
        self._weights = lengths.running()
        self._tokens = lengths.running(lengths.tokens)
        self._bytes = lengths.running(site.kv_bytes)
        self._remotes = [lengths.running(remote.prefill_s) for remote in site.remotes]
        self._homes = [lengths.running(home.prefill_s) for home in site.homes]
        self._made: dict[int, Split] = {}

    def alone(self) -> Splits:
        """Those of the PD clusters alone: the sums of their own prefill are the same."""
        made = copy(self)
        made._remotes, made._made = [], {}
        made.site = replace(self.site, remotes=(), homes=tuple(replace(h, links_bps=()) for h in self.site.homes))
        return made

    def __len__(self) -> int:
        return len(self._weights)

    def __iter__(self) -> Iterator[Split]:
        return (self.at(cut) for cut in range(len(self)))

    def at(self, cut: int) -> Split:
        """The split that keeps the first `cut` bins at home."""
        if cut not in self._made:
            self._made[cut] = self._split(cut)
        return self._made[cut]

    def _split(self, cut: int) -> Split:
        site, end = self.site, len(self) - 1
        short, long = self._weights[cut], self._weights[end] - self._weights[cut]
        short, long = (short if cut else 0.0), (long if cut < end else 0.0)
        l_short = self._tokens[cut] / short if short > 0 else 0.0
        l_long = (self._tokens[end] - self._tokens[cut]) / long if long > 0 else 0.0
        homes = [home.prefill_s for home in site.homes]
        if self.formulas == "paper":
            value, middle = site.lengths.at, self._tokens[end] / self._weights[end]
            return Split(
                cut,
                long,
                l_long,
                l_short,
                tuple(value(r.prefill_s, l_long) if long > 0 else 0.0 for r in site.remotes),
                tuple(value(table, l_short) if short > 0 else 0.0 for table in homes),
                tuple(value(table, middle) for table in homes),
                value(site.kv_bytes, l_long) if long > 0 else 0.0,
            )
        return Split(
            cut,
            long,
            l_long,
            l_short,
            tuple((sums[end] - sums[cut]) / long if long > 0 else 0.0 for sums in self._remotes),
            tuple(sums[cut] / short if short > 0 else 0.0 for sums in self._homes),
            tuple(sums[end] for sums in self._homes),
            (self._bytes[end] - self._bytes[cut]) / long if long > 0 else 0.0,
        )
