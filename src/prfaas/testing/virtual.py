"""The virtual-time driver: the twin of `runtime/driver`, with time that jumps to whatever comes next.

It knows the pump and a number; it does not know machines or events. The simulator and the parity tests use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from prfaas.core.machine import Arm, Disarm, Machine, Pump

Ev = TypeVar("Ev")
Ef = TypeVar("Ef")


class VirtualDriver(Generic[Ev, Ef]):
    """Runs `machine` from time 0. `perform(now_ns, effect)` answers through `post` and `later`."""

    def __init__(self, machine: Machine[Ev, Ef | Arm[Ev] | Disarm], perform: Callable[[int, Ef], None]) -> None:
        self._pump: Pump[Ev, Ef] = Pump(machine, perform)
        self.now_ns = 0

    def post(self, event: Ev) -> None:
        """`event` happens now."""
        self._pump.post(self.now_ns, event)

    def later(self, delay_ns: int, event: Ev, rank: int = 0) -> None:
        """`event` will happen `delay_ns` from now."""
        self._pump.later(self.now_ns + delay_ns, event, rank)

    def run(self, until_ns: int | None = None) -> None:
        """Let everything happen, in order, up to `until_ns` (all there is when None)."""
        while (at_ns := self._pump.next_at()) is not None and (until_ns is None or at_ns <= until_ns):
            self.now_ns = max(self.now_ns, at_ns)
            self._pump.run_due(self.now_ns)
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)
