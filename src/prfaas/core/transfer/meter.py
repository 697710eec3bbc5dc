"""How fast bytes moved: bytes over the time in which those bytes moved, as seen where they arrive.

It knows reads and chunks; it does not know connections. The line is busy in the middle of a chunk, and after a chunk
behind which the sender had more waiting. All other time is the engine computing, or the sender waiting for us. What
arrives first after such a pause was on its way before it was seen, so the pace is taken from what follows: from the
chunks after the first of a burst, else from within the first, and only if there is neither from all the time.
"""

from __future__ import annotations


class _Tally:
    """Bytes, and the time before each of the reads that brought them."""

    __slots__ = ("size_bytes", "span_ns")

    def __init__(self) -> None:
        self.size_bytes = self.span_ns = 0

    def add(self, size_bytes: int, span_ns: int) -> None:
        self.size_bytes += size_bytes
        self.span_ns += span_ns


class Meter:
    """Adds up one transfer, from all its connections, since `now_ns`."""

    __slots__ = ("_first", "_fresh", "_idle", "_last_ns", "_more", "_steady")

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._more = False
        self._fresh = True
        self._idle, self._first, self._steady = _Tally(), _Tally(), _Tally()

    def read(self, now_ns: int, size_bytes: int, under_way: bool) -> None:
        """`size_bytes` came; `under_way`: part of their chunk was here already."""
        span_ns, self._last_ns = now_ns - self._last_ns, now_ns
        if not (under_way or self._more):
            self._fresh = True
            self._idle.add(size_bytes, span_ns)
        else:
            (self._first if self._fresh else self._steady).add(size_bytes, span_ns)

    def chunk(self, more: bool) -> None:
        """A chunk is whole; `more` were waiting when it left."""
        self._more = more
        self._fresh = False

    @property
    def moving_ns(self) -> int:
        """Time in which all that came moved."""
        whole = self._idle.size_bytes + self._first.size_bytes + self._steady.size_bytes
        for tally in (self._steady, self._first):
            if tally.size_bytes and tally.span_ns:
                return whole * tally.span_ns // tally.size_bytes
        return self._idle.span_ns
