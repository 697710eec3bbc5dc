"""How fast bytes moved: bytes over the time in which those bytes moved, as seen where they arrive.

It knows reads and times; it does not know why the wire was quiet. A gap in the middle of a frame is moving time. A gap
between frames may be the engine computing: of those counts only what the bytes that ended them would need at the pace
of the others.
"""

from __future__ import annotations


class Meter:
    """Adds up reads of one transfer, from all its connections, since `now_ns`."""

    __slots__ = ("_after_quiet_bytes", "_last_ns", "_quiet_ns", "_steady_bytes", "_steady_ns")

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self._steady_bytes = self._steady_ns = 0
        self._after_quiet_bytes = self._quiet_ns = 0

    def read(self, now_ns: int, size_bytes: int, under_way: bool) -> None:
        """`size_bytes` came; `under_way`: some frame was half here before them."""
        gap_ns = now_ns - self._last_ns
        self._last_ns = now_ns
        if under_way:
            self._steady_bytes += size_bytes
            self._steady_ns += gap_ns
        else:
            self._after_quiet_bytes += size_bytes
            self._quiet_ns += gap_ns

    @property
    def bytes_moved(self) -> int:
        """All that came."""
        return self._steady_bytes + self._after_quiet_bytes

    @property
    def moving_ns(self) -> int:
        """Time in which they moved."""
        if self._steady_bytes == 0:
            return self._quiet_ns
        at_pace_ns = self._after_quiet_bytes * self._steady_ns // self._steady_bytes
        return self._steady_ns + min(self._quiet_ns, at_pace_ns)
