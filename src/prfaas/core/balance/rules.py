"""Our rule: one step towards the best division, when what is expected of it is better by a margin.

It knows rates, counts and what was done last; it does not know nodes. Measured rates are off by noise, and the mix
moves while a conversion lasts and after. So a division is not judged by its rate alone, but by the mean of its rates
when prefill and decode are a little apart from what was measured: a division on the edge of a cliff counts for less
than one on a plateau. Which one is best does not depend on where one stands, so under the same traffic the rule walks
one way and comes to rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Protocol

from prfaas.core.balance.effects import Judged, Why
from prfaas.core.balance.measured import MINUTE_NS
from prfaas.core.balance.outlook import Outlook


@dataclass(frozen=True, slots=True)
class Limits:
    """Nodes that each role must keep."""

    prefill: int = 1
    decode: int = 1


@dataclass(frozen=True, slots=True)
class Situation:
    """`n_p` and `n_d` nodes work; a conversion takes about `conversion_ns`; the last one, `since_ns` ago, added
    `last_step` prefill nodes (0: there was none)."""

    n_p: int
    n_d: int
    limits: Limits
    conversion_ns: int
    last_step: int = 0
    since_ns: int = 0


class Rule(Protocol):
    """How a cluster is judged."""

    def judge(self, outlook: Outlook, now: Situation) -> Judged:
        """What to do now."""


@dataclass(frozen=True, slots=True)
class Predictive:
    """`margin`: relative gain below which nothing is done, and so are `sigmas` standard errors of what was measured;
    `back`: the same for a step that undoes the last one within `rest_ns`. `drift`: by how much, relative, prefill and
    decode may move against each other before the next step takes effect, a standard deviation; what was measured adds
    its own error. `horizon_ns`: for how long a division is expected to be of use: what is lost while a node converts is
    spread over it."""

    margin: float = 0.04
    sigmas: float = 1.0
    back: float = 0.35
    rest_ns: int = 120 * MINUTE_NS
    drift: float = 0.06
    horizon_ns: int = 60 * MINUTE_NS
    name: str = "predictive"

    def judge(self, outlook: Outlook, now: Situation) -> Judged:
        """See Rule."""
        n_p, n_d, nodes = now.n_p, now.n_d, now.n_p + now.n_d
        spread = sqrt(self.drift * self.drift + outlook.noise * outlook.noise)
        worth = {n: expected(outlook, n, nodes - n, spread) for n in fitting(now)}
        # Of equals the nearest, then the one with fewer prefill nodes: nothing moves without a reason.
        target = max(worth, key=lambda n: (worth[n], -abs(n - n_p), -n), default=n_p)
        step = (target > n_p) - (target < n_p)
        if not step:
            return judged(self.name, outlook, now, "best", 0, target, 0.0, self.margin)
        have = expected(outlook, n_p, n_d, spread)
        during = expected(outlook, n_p - (step < 0), n_d - (step > 0), spread)
        lost = (have - during) * now.conversion_ns / self.horizon_ns
        gain = (worth[target] - have - lost) / have if have > 0 else float(worth[target] > 0)
        margin = max(self.margin, self.sigmas * outlook.noise)
        undoes = now.last_step == -step and now.since_ns <= self.rest_ns
        need = max(margin, self.back) if undoes else margin
        why: Why = "better" if gain > need else "rest" if gain > margin else "margin"
        return judged(self.name, outlook, now, why, step, target, gain, need)


_APART = sqrt(3.0)


def expected(outlook: Outlook, n_p: int, n_d: int, spread: float) -> float:
    """The mean rate when decode does as measured, give or take a normal error: by three points (Gauss and Hermite)."""
    prefill, decode = outlook.prefill(n_p), outlook.decode(n_d)
    low, high = decode * max(0.0, 1 - _APART * spread), decode * (1 + _APART * spread)
    return min(prefill, decode) * (2 / 3) + (min(prefill, low) + min(prefill, high)) / 6


def fitting(now: Situation) -> range:
    """The n_p that keep both roles' minimum."""
    return range(now.limits.prefill, now.n_p + now.n_d - now.limits.decode + 1)


def judged(
    rule: str, outlook: Outlook, now: Situation, why: Why, towards: int, target: int, gain: float, need: float
) -> Judged:
    """With all that the outlook says filled in. `towards`: the step that was weighed."""
    traffic, n_p, n_d = outlook.traffic, now.n_p, now.n_d
    fits = n_p + towards in fitting(now)
    return Judged(
        rule,
        why,
        towards if why == "better" else 0,
        n_p,
        n_d,
        target,
        outlook.rate(n_p, n_d),
        outlook.rate(n_p + towards, n_d - towards) if fits else outlook.rate(n_p, n_d),
        outlook.rate(target, n_p + n_d - target),
        gain,
        need,
        outlook.noise,
        outlook.threshold(n_p),
        traffic.requests,
        traffic.arrivals_rps,
        traffic.output,
    )
