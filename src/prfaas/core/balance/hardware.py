"""What work costs on a PD cluster's nodes and on the remotes that serve it, as functions that are handed in.

It knows seconds and bytes of lengths; it does not know profiles or layouts, nor how many nodes there are at the moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prfaas.core.balance.measured import Traffic
from prfaas.core.throughput.site import Home, Remote, Site

Prefill = Callable[[float, float], float]
"""Seconds of a node for one prompt, of (uncached tokens, context tokens)."""


@dataclass(frozen=True, slots=True)
class Hardware:
    """`home`, and `remotes` in order: seconds of prefill on a node. `decode_s`: seconds of a decode node for one
    answer, its part of a full batch, of (output tokens, mean context while it decodes). `kv_bytes`: what crosses a link
    for so many uncached tokens. All mean values, and none falls as a length grows."""

    home: Prefill
    remotes: tuple[Prefill, ...]
    decode_s: Callable[[float, float], float]
    kv_bytes: Callable[[float], float]

    def site(self, traffic: Traffic, nodes: int, remote_nodes: tuple[int, ...]) -> Site:
        """The plain numbers that `core/throughput` takes: this cluster of `nodes`, under this traffic."""
        lengths = traffic.lengths
        pairs = list(zip(lengths.tokens, traffic.context, strict=True))
        prompt = sum(w * c for w, c in zip(lengths.weights, traffic.context, strict=True))
        decode_s = self.decode_s(traffic.output, prompt + traffic.output / 2)
        return Site(
            lengths,
            lengths.table(self.kv_bytes),
            tuple(
                Remote(count, tuple(cost(*pair) for pair in pairs))
                for count, cost in zip(remote_nodes, self.remotes, strict=True)
            ),
            (Home(nodes, tuple(self.home(*pair) for pair in pairs), 1 / decode_s, 1.0, traffic.links_bps),),
        )
