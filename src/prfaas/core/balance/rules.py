"""Our rule: one step towards the best division, when it is better by a margin that what is unsure cannot explain.

It knows rates and counts; it does not know nodes, time or what was done before. The rate of a division is the least of
a rising and a falling function of `n_p`, so each step towards the best one is a gain, and a rule with a margin has one
interval of `n_p` where it stays: it cannot go back and forth under the same traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from prfaas.core.balance.effects import Judged, Why
from prfaas.core.balance.outlook import Outlook


@dataclass(frozen=True, slots=True)
class Limits:
    """Nodes that each role must keep."""

    prefill: int = 1
    decode: int = 1


class Rule(Protocol):
    """How a cluster is judged."""

    def judge(self, outlook: Outlook, n_p: int, n_d: int, limits: Limits, conversion_ns: int) -> Judged:
        """What to do with `n_p` and `n_d` working nodes, when a conversion takes about `conversion_ns`."""


@dataclass(frozen=True, slots=True)
class Predictive:
    """`margin`: relative gain below which nothing is done. `sigmas`: the gain must also be so many standard errors of
    what was measured. `horizon_ns`: for how long a division is expected to be of use: what is lost while a node
    converts is spread over it."""

    margin: float = 0.05
    sigmas: float = 1.0
    horizon_ns: int = 3_600_000_000_000
    name: str = "predictive"

    def judge(self, outlook: Outlook, n_p: int, n_d: int, limits: Limits, conversion_ns: int) -> Judged:
        """See Rule."""
        nodes = n_p + n_d
        now = outlook.rate(n_p, n_d)
        fits = range(limits.prefill, nodes - limits.decode + 1)
        # Of equals the nearest, then the one with fewer prefill nodes: nothing moves without a reason.
        target = max(fits, key=lambda n: (outlook.rate(n, nodes - n), -abs(n - n_p), -n), default=n_p)
        step = (target > n_p) - (target < n_p)
        best, after = outlook.rate(target, nodes - target), outlook.rate(n_p + step, n_d - step)
        during = outlook.rate(n_p - (step < 0), n_d - (step > 0))
        lost = (now - during) * conversion_ns / self.horizon_ns
        gain = (best - now - lost) / now if now > 0 else (1.0 if best > 0 else 0.0)
        need = max(self.margin, self.sigmas * outlook.noise)
        why: Why = "better"
        if not step:
            why = "best"
        elif gain <= need:
            why = "margin"
        return judged(self.name, outlook, n_p, n_d, step if why == "better" else 0, target, why, after, gain, need)


def judged(
    rule: str,
    outlook: Outlook,
    n_p: int,
    n_d: int,
    step: int,
    target: int,
    why: Why,
    after: float,
    gain: float,
    need: float,
) -> Judged:
    """With everything that the outlook says filled in."""
    traffic = outlook.traffic
    return Judged(
        rule,
        why,
        step,
        n_p,
        n_d,
        target,
        outlook.rate(n_p, n_d),
        after,
        outlook.rate(target, n_p + n_d - target),
        gain,
        need,
        outlook.noise,
        outlook.threshold(n_p),
        traffic.requests,
        traffic.arrivals_rps,
        traffic.output,
    )
