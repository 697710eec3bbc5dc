"""What every division of a PD cluster's nodes would sustain under the traffic seen lately (eq. 6, each with its own t).

It knows rates, thresholds and counts; it does not know nodes by name, nor what was decided before. Integrals over the
measured distribution (`exact`), since they are true for any shape of it.
"""

from __future__ import annotations

from math import inf, sqrt

from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import Traffic
from prfaas.core.throughput.search import Search, Shape
from prfaas.core.throughput.split import Splits


class Outlook:
    """Rates are requests a second of the whole mix. `n_p` and `n_d` prefill and decode nodes are free counts: a node
    that is being converted is in neither. `noise`: relative standard error of what a node does, since only so many
    requests were seen."""

    def __init__(self, traffic: Traffic, hardware: Hardware, nodes: int, remote_nodes: tuple[int, ...]) -> None:
        self.traffic = traffic
        self.site = hardware.site(traffic, max(nodes, 1), remote_nodes)
        self._search = Search(self.site, Splits(self.site, "exact"))
        self._shapes: dict[int, Shape] = {}

    def shape(self, n_p: int) -> Shape:
        """With the best threshold for `n_p`. Its `decode` counts all other nodes."""
        if n_p not in self._shapes:
            self._shapes[n_p] = self._search.with_nodes((n_p,))
        return self._shapes[n_p]

    def prefill(self, n_p: int) -> float:
        """What all prefill, here and far away, sustains."""
        shape = self.shape(n_p)
        return min(shape.remote, shape.prefill)

    def decode(self, n_d: int) -> float:
        """What decode sustains."""
        return n_d * self.site.homes[0].decode_rate

    def rate(self, n_p: int, n_d: int) -> float:
        """Lambda_max of this division."""
        return min(self.prefill(n_p), self.decode(n_d))

    def threshold(self, n_p: int) -> int:
        """The best t for `n_p`, tokens."""
        return self.site.lengths.threshold(self.shape(n_p).cut)

    def prefill_at(self, threshold: int, n_p: int) -> float:
        """What all prefill sustains under this threshold."""
        shape = self._search.shape(self.site.lengths.cut(threshold), (n_p,))
        return min(shape.remote, shape.prefill)

    def thetas(self, n_p: int) -> tuple[float, float]:
        """Theta_prfaas and Theta_pd_p (eq. 3, 4) at the best t: requests a second of each class. 0 of a class that
        nobody is in."""
        shape = self.shape(n_p)
        p = self._search.splits.at(shape.cut).p
        return (shape.remote * p if p > 0 else 0.0), (shape.prefill * (1 - p) if shape.prefill < inf else 0.0)

    @property
    def noise(self) -> float:
        """See above. Prefill and decode are measured apart, so their errors add as squares."""
        weights, times = self.site.lengths.weights, self.site.homes[0].prefill_s
        mean = sum(w * s for w, s in zip(weights, times, strict=True))
        square = sum(w * s * s for w, s in zip(weights, times, strict=True))
        spread = square / (mean * mean) - 1 if mean > 0 else 0.0
        error = self.traffic.output_error
        return sqrt(max(spread, 0.0) / self.traffic.requests + error * error)
