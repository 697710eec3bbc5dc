"""What there is: PrfaaS clusters, PD clusters, links and the lengths of requests, in plain numbers.

It knows counts, rates and tables over length; it does not know names, profiles, layouts or prices. Every table has one
value a bin of `lengths`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prfaas.core.errors import InvariantError
from prfaas.core.throughput.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Remote:
    """A PrfaaS cluster: `nodes`, each of which prefills a request of bin `i` in `prefill_s[i]` on average."""

    nodes: int
    prefill_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Home:
    """A PD cluster: `nodes` in either role. `decode_rate`: requests a second that one decode node ends. `share`: its
    part of all requests. `links_bps`: from each remote, in order; 0 where there is none."""

    nodes: int
    prefill_s: tuple[float, ...]
    decode_rate: float
    share: float = 1.0
    links_bps: tuple[float, ...] = ()

    @property
    def linked(self) -> bool:
        """Whether any remote can send to it."""
        return any(self.links_bps)


@dataclass(frozen=True, slots=True)
class Site:
    """`kv_bytes[i]`: what crosses a link for a request of bin `i`."""

    lengths: Lengths
    kv_bytes: tuple[float, ...]
    remotes: tuple[Remote, ...]
    homes: tuple[Home, ...]

    def __post_init__(self) -> None:
        tables = [self.kv_bytes, *(r.prefill_s for r in self.remotes), *(h.prefill_s for h in self.homes)]
        if any(len(table) != len(self.lengths) for table in tables):
            raise InvariantError("a table has not one value a bin")
        if any(len(home.links_bps) != len(self.remotes) or home.nodes < 1 for home in self.homes):
            raise InvariantError("a home has no nodes, or not one link a remote")
        if not self.homes or abs(sum(home.share for home in self.homes) - 1) > 1e-6:
            raise InvariantError("the shares of the homes do not sum to 1")

    def with_links(self, factor: float) -> Site:
        """The same with every link `factor` times as wide."""
        homes = (replace(home, links_bps=tuple(bps * factor for bps in home.links_bps)) for home in self.homes)
        return replace(self, homes=tuple(homes))

    def with_output(self, factor: float) -> Site:
        """The same with answers `factor` times as long."""
        homes = (replace(home, decode_rate=home.decode_rate / factor) for home in self.homes)
        return replace(self, homes=tuple(homes))

    def alone(self, nodes: tuple[int, ...]) -> Site:
        """The PD clusters alone, with so many nodes."""
        homes = (replace(home, nodes=n, links_bps=()) for home, n in zip(self.homes, nodes, strict=True))
        return replace(self, remotes=(), homes=tuple(homes))
