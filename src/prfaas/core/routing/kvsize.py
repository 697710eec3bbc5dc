"""How many bytes of KV a prompt makes, learned from what decode nodes reserved for prompts before.

It knows lengths and bytes, which are exact; it does not know layouts. Between two lengths bytes are a straight line, or
nearly: rows by the token, states, windows that are full.
"""

from __future__ import annotations

from bisect import bisect_left

RANGE = 2
"""How much longer the longest must be than the shortest before others are known."""


class KvSize:
    """One prompt of each half octave of lengths is kept, the first."""

    __slots__ = ("_kept", "_points")

    def __init__(self) -> None:
        self._kept: dict[int, tuple[int, int]] = {}
        self._points: list[tuple[int, int]] = []

    def seen(self, tokens: int, kv_bytes: int) -> None:
        """A prompt of `tokens` tokens makes `kv_bytes`; 0 says nothing."""
        half_octave = (tokens * tokens).bit_length()
        if tokens > 0 and kv_bytes > 0 and half_octave not in self._kept:
            self._kept[half_octave] = (tokens, kv_bytes)
            self._points = sorted(self._kept.values())

    def at(self, tokens: int) -> int | None:
        """Bytes of a prompt of `tokens` tokens, outside of what was seen by the nearest line; None while unknown."""
        points = self._points
        if len(points) < 2 or points[-1][0] < RANGE * points[0][0]:
            return None
        at = min(max(bisect_left(points, (tokens, 0)), 1), len(points) - 1)
        (low, below), (high, above) = points[at - 1], points[at]
        return max(0, below + (above - below) * (tokens - low) // (high - low))
