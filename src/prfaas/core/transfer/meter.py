"""How fast bytes moved: bytes over the time in which those bytes moved, as seen where they arrive.

It knows reads and times; it does not know why the wire was quiet. A gap in the middle of a frame is moving time. A gap
between frames may be the engine computing: of it counts only what the bytes that end it would need at the pace so far.
"""

from __future__ import annotations


class Meter:
    """Adds up reads of one transfer, from all its connections."""

    __slots__ = ("_last_ns", "bytes_moved", "moving_ns")

    def __init__(self, now_ns: int) -> None:
        self._last_ns = now_ns
        self.bytes_moved = 0
        self.moving_ns = 0

    def read(self, now_ns: int, size_bytes: int, under_way: bool) -> None:
        """`size_bytes` came; `under_way`: some frame was half here before them."""
        gap_ns = now_ns - self._last_ns
        if not under_way and self.bytes_moved:
            gap_ns = min(gap_ns, size_bytes * self.moving_ns // self.bytes_moved)
        self.moving_ns += gap_ns
        self.bytes_moved += size_bytes
        self._last_ns = now_ns
