"""The threshold, kept at what the measured traffic asks for: slowly, and only when it is worth a change.

It knows what was measured and how many nodes there are; it does not know queues: what is fast enters each decision of
the router, not `t`. (A threshold that follows queues moves work to where it then stays stuck.)
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.balance.effects import Retuned
from prfaas.core.balance.events import Look, Staffed
from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Measured
from prfaas.core.balance.outlook import Outlook
from prfaas.core.errors import InvariantError
from prfaas.core.machine import Arm

TuneEvent = Staffed | Look


@dataclass(frozen=True, slots=True)
class TunePolicy:
    """Every `period_ns`, and when nodes come, go or change roles. `margin`: relative gain in what all prefill sustains,
    below which t stays. `least_requests`: fewer in the window, and it stays too."""

    period_ns: int = MINUTE_NS
    margin: float = 0.01
    least_requests: int = 200


class Tuner:
    """`handle(now_ns, event)`; `threshold` is what holds now, tokens."""

    def __init__(self, policy: TunePolicy, hardware: Hardware, measured: Measured, threshold: int) -> None:
        self.policy, self.hardware, self.measured = policy, hardware, measured
        self.threshold = threshold
        self._staff: Staffed | None = None

    def handle(self, now_ns: int, event: TuneEvent) -> list[Retuned | Arm[TuneEvent]]:
        """Effects of `event`, in order."""
        match event:
            case Staffed():
                before, self._staff = self._staff, event
                if before is not None and _counts(before) == _counts(event):
                    return []
            case Look():
                if self._staff is None:
                    return []
        return [*self._tuned(now_ns), Arm("tune", now_ns + self.policy.period_ns, Look())]

    def validate(self) -> None:
        """Raises InvariantError when the threshold is none."""
        if self.threshold < 0:
            raise InvariantError(f"a threshold of {self.threshold} tokens")

    def _tuned(self, now_ns: int) -> list[Retuned]:
        staff, traffic = self._staff, self.measured.traffic(now_ns)
        if staff is None or traffic is None or traffic.requests < self.policy.least_requests:
            return []
        n_p = len(staff.prefill)
        outlook = Outlook(traffic, self.hardware, n_p + len(staff.decode), staff.remotes)
        before, best = outlook.prefill_at(self.threshold, n_p), outlook.prefill(n_p)
        if best <= before * (1 + self.policy.margin):
            return []
        old, self.threshold = self.threshold, outlook.threshold(n_p)
        return [Retuned(self.threshold, old, best, before, n_p, traffic.requests, traffic.links_bps)]


def _counts(staff: Staffed) -> tuple[int, int, tuple[int, ...]]:
    return len(staff.prefill), len(staff.decode), staff.remotes
