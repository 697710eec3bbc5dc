"""The asyncio driver of a machine: real time, one timer for the head of the agenda.

It knows the running loop and the clock; it does not know what the machine decides. `testing/virtual` is its twin in
virtual time; both only hand `now` to `core.machine.Pump`.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, TypeVar

from prfaas.core.machine import Arm, Disarm, Machine, Pump

Ev = TypeVar("Ev")
Ef = TypeVar("Ef")
CLOCK_GRAIN_NS = 100_000
"""A timer that fires within this of its time fired on time: an event loop is no finer."""


def loop_now_ns() -> int:
    """The running loop's clock, ns. All deadlines of one process are on it."""
    return int(asyncio.get_running_loop().time() * 1e9)


class Driver(Generic[Ev, Ef]):
    """Runs `machine` on the current event loop. `perform(now_ns, effect)` must not block; it may call `post`."""

    def __init__(self, machine: Machine[Ev, Ef | Arm[Ev] | Disarm], perform: Callable[[int, Ef], None]) -> None:
        self._pump: Pump[Ev, Ef] = Pump(machine, perform)
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: int | None = None
        self._firing_ns: int | None = None

    @property
    def now_ns(self) -> int:
        """The loop's clock; while timers fire, the time that they were set for (if they are not truly late)."""
        return self._firing_ns if self._firing_ns is not None else loop_now_ns()

    def post(self, event: Ev) -> None:
        """`event` has happened now. Only from the loop's own thread."""
        self._pump.post(self.now_ns, event)
        self._set_timer()

    def later(self, delay_ns: int, event: Ev, rank: int = 0) -> None:
        """`event` will happen `delay_ns` from now."""
        self._pump.later(self.now_ns + delay_ns, event, rank)
        self._set_timer()

    def close(self) -> None:
        """No timer fires any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._timer_at = None

    def _set_timer(self) -> None:
        at_ns = self._pump.next_at()
        if self._firing_ns is not None or at_ns == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = None, at_ns
        if at_ns is not None:
            # asyncio's clock has float seconds: a hair late is right, a hair early would spin. In a context of its own:
            # who happened to set the timer has nothing to do with what comes of it, in the log for one.
            loop, context = asyncio.get_running_loop(), contextvars.Context()
            self._timer = loop.call_at(at_ns / 1e9 + 1e-6, self._fire, at_ns, context=context)

    def _fire(self, at_ns: int) -> None:
        late_ns = loop_now_ns() - at_ns
        self._firing_ns = at_ns if late_ns < CLOCK_GRAIN_NS else at_ns + late_ns
        self._timer = self._timer_at = None
        try:
            self._pump.run_due(self._firing_ns)
        finally:
            self._firing_ns = None
        self._set_timer()
