"""A small cluster for tests: 8 nodes at home, 4 far away, linear times; and traffic of a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence

from prfaas.core.balance.balancer import BalancePolicy, Balancer
from prfaas.core.balance.effects import BalanceEffect, Convert, Drain, Judged
from prfaas.core.balance.events import BalanceEvent, Converted, Drained, Staffed
from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Measured, Span
from prfaas.core.ids import NodeName
from prfaas.core.machine import Pump

HARDWARE = Hardware(
    lambda uncached, _: 0.4 + 0.00014 * uncached,
    (lambda uncached, _: 0.4 + 0.00005 * uncached,),
    lambda output, _: output / 800,
    lambda tokens: 2e8 + 17e3 * tokens,
)
REMOTES = (4,)
LINK_BPS = 100e9


def names(n_p: int, n_d: int) -> Staffed:
    """So many nodes of each role."""
    prefill = tuple(NodeName(f"p{at}") for at in range(n_p))
    return Staffed(prefill, tuple(NodeName(f"d{at}") for at in range(n_d)), REMOTES)


class Cluster:
    """A balancer, and nodes that drain and convert in a minute each."""

    def __init__(self, policy: BalancePolicy, n_p: int = 3, n_d: int = 5, span: Span | None = None) -> None:
        self.measured = Measured((LINK_BPS,), 1000.0, span)
        self.balancer = Balancer(policy, HARDWARE, self.measured)
        self.log: list[tuple[int, BalanceEffect]] = []
        self.pump: Pump[BalanceEvent, BalanceEffect] = Pump(self.balancer, self._perform)
        self.pump.post(0, names(n_p, n_d))

    def _perform(self, now_ns: int, effect: BalanceEffect) -> None:
        self.log.append((now_ns, effect))
        if isinstance(effect, Drain):
            self.pump.later(now_ns + MINUTE_NS, Drained(effect.node))
        elif isinstance(effect, Convert):
            self.pump.later(now_ns + MINUTE_NS, Converted(effect.node))

    def minutes(self, began: int, count: int, chance: random.Random, rps: float, mean: int, output: int) -> None:
        """Exponential lengths and answers, evenly spaced."""
        step_ns = int(1e9 / rps)
        for minute in range(began, began + count):
            self.pump.run_due(minute * MINUTE_NS)
            self.balancer.validate()
            self.measured.window.validate()
            for now_ns in range(minute * MINUTE_NS, (minute + 1) * MINUTE_NS, step_ns):
                tokens = 1 + int(chance.expovariate(1 / mean))
                self.measured.arrived(now_ns, tokens, tokens)
                self.measured.ended(now_ns, 1 + int(chance.expovariate(1 / output)))

    @property
    def steps(self) -> list[int]:
        """What was converted: 1 to prefill, -1 to decode."""
        return [1 if one.role == "prefill" else -1 for _, one in self.log if isinstance(one, Convert)]

    @property
    def judged(self) -> Sequence[Judged]:
        return [one for _, one in self.log if isinstance(one, Judged)]
