"""A quantity that jumps, smoothed over time.

It knows values and times; it does not know of what. A sample says what was true since the last one; after a time
`tau_ns` in which another value held, half of the way to it is gone. (Rational, not exponential: the same to the last
bit on every machine.)
"""

from __future__ import annotations


class Smooth:
    """`value` is None until there was a sample, unless a `start` is given."""

    __slots__ = ("_last_ns", "tau_ns", "value")

    def __init__(self, tau_ns: int, start: float | None = None, now_ns: int = 0) -> None:
        self.tau_ns = tau_ns
        self.value = start
        self._last_ns = now_ns

    def add(self, now_ns: int, sample: float) -> None:
        """It is `sample`, and was since the last one."""
        span_ns, self._last_ns = max(0, now_ns - self._last_ns), max(now_ns, self._last_ns)
        if self.value is None:
            self.value = sample
        else:
            self.value += (sample - self.value) * (span_ns / (span_ns + self.tau_ns))
