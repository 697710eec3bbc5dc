"""How fast bytes moved: bytes over the time in which those bytes moved, as seen where they arrive.

It knows reads and times; it does not know frames. A gap while the line was busy (in the middle of a frame, or when the
sender had more waiting) is moving time. Any other gap is the engine computing, or the sender waiting for us: of it
counts what the bytes that ended it need at the pace of the others, since they were on their way before they were seen.
"""

from __future__ import annotations


class Meter:
    """Adds up reads of one transfer, from all its connections, since `now_ns`."""

    __slots__ = ("_idle_bytes", "_idle_ns", "_last_ns", "_steady_bytes", "_steady_ns")

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._steady_bytes = self._steady_ns = 0
        self._idle_bytes = self._idle_ns = 0

    def read(self, now_ns: int, size_bytes: int, busy: bool) -> None:
        """`size_bytes` came; `busy`: the line was, all the time since the last read."""
        gap_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if busy:
            self._steady_bytes += size_bytes
            self._steady_ns += gap_ns
        else:
            self._idle_bytes += size_bytes
            self._idle_ns += gap_ns

    @property
    def moving_ns(self) -> int:
        """Time in which they moved."""
        if self._steady_bytes == 0:
            return self._idle_ns
        return self._steady_ns + self._idle_bytes * self._steady_ns // self._steady_bytes
