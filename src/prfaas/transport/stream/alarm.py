"""One timer for everything that a transport waits for: the shared agenda on asyncio's clock.

It knows times and calls; it does not know what they mean. Equal times fire in the order in which they were planned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prfaas.core.agenda import Agenda, Entry

Call = Callable[[], None]


class Alarm:
    """Calls planned on `clock` (ns). Used from one event loop."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self._agenda: Agenda[Call] = Agenda()
        self._handle: asyncio.TimerHandle | None = None
        self._armed_ns = 0

    def at(self, at_ns: int, call: Call) -> Entry[Call]:
        """Plan `call`; the entry is the handle for `cancel`."""
        entry = self._agenda.add(at_ns, call)
        self._arm()
        return entry

    def cancel(self, entry: Entry[Call] | None) -> None:
        """Take a call back; harmless for None, and afterwards."""
        if entry is not None:
            self._agenda.cancel(entry)

    def close(self) -> None:
        """Forget all calls."""
        self._agenda = Agenda()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _arm(self) -> None:
        at_ns = self._agenda.next_at()
        if at_ns is None or (self._handle is not None and self._armed_ns <= at_ns):
            return
        if self._handle is not None:
            self._handle.cancel()
        wait_s = max(0, at_ns - self.clock()) / 1e9
        self._armed_ns = at_ns
        self._handle = asyncio.get_running_loop().call_later(wait_s, self._fire)

    def _fire(self) -> None:
        self._handle = None
        try:
            while (call := self._agenda.pop_due(self.clock())) is not None:
                call()
        finally:
            self._arm()
