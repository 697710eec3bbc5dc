"""How much of a node's time each of its prefills had, when they share it evenly.

It knows how many there are and when that changes; it does not know what they compute.
"""

from __future__ import annotations


class ShareClock:
    """The time of one prefill among `jobs`. What one had is the difference between its end and its beginning."""

    __slots__ = ("_at_ns", "_share_ns", "jobs")

    def __init__(self) -> None:
        self.jobs = self._at_ns = self._share_ns = 0

    def begin(self, now_ns: int) -> int:
        """One more from now on; the clock's time."""
        return self._go(now_ns, 1)

    def end(self, now_ns: int) -> int:
        """One less from now on; the clock's time."""
        return self._go(now_ns, -1)

    def _go(self, now_ns: int, change: int) -> int:
        if self.jobs:
            self._share_ns += (now_ns - self._at_ns) // self.jobs
        self._at_ns = now_ns
        self.jobs += change
        return self._share_ns
