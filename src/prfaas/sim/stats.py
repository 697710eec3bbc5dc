"""Distributions in little memory: counts by value, to one part in 256.

It knows whole numbers that are not negative; it does not know what they are of.
"""

from __future__ import annotations

from collections import defaultdict

FINE_BITS = 8
FINE = 1 << FINE_BITS


class Histogram:
    """Counts of values in buckets whose width is at most 1/256 of the value; `total` is exact."""

    __slots__ = ("buckets", "most", "total")

    def __init__(self) -> None:
        self.buckets: defaultdict[int, int] = defaultdict(int)
        self.total = 0
        self.most = 0

    def add(self, value: int) -> None:
        """Count `value`, at least 0."""
        self.total += value
        if value > self.most:
            self.most = value
        shift = value.bit_length() - FINE_BITS - 1
        bucket = value if shift <= 0 else (value >> shift) + (shift << FINE_BITS)
        self.buckets[bucket] += 1

    def merge(self, other: Histogram) -> None:
        """Count all that `other` did."""
        self.total += other.total
        self.most = max(self.most, other.most)
        for bucket, many in other.buckets.items():
            self.buckets[bucket] += many

    @property
    def count(self) -> int:
        """How many were counted."""
        return sum(self.buckets.values())

    @property
    def mean(self) -> float:
        """The mean, 0 of nothing."""
        count = self.count
        return self.total / count if count else 0.0

    def quantile(self, share: float) -> float:
        """The value that `share` of the counted do not exceed: the middle of its bucket, 0 of nothing."""
        wanted, done = share * self.count, 0
        for bucket in sorted(self.buckets):
            done += self.buckets[bucket]
            if done >= wanted:
                return min(_middle(bucket), float(self.most))
        return 0.0

    def steps(self) -> list[tuple[float, float]]:
        """(value, share of the counted that do not exceed it), for a picture."""
        found, done, count = [], 0, self.count
        for bucket in sorted(self.buckets):
            done += self.buckets[bucket]
            found.append((_middle(bucket), done / count))
        return found


def _middle(bucket: int) -> float:
    if bucket < 2 * FINE:
        return float(bucket)
    shift = (bucket >> FINE_BITS) - 1
    low = (bucket - (shift << FINE_BITS)) << shift
    return low + ((1 << shift) - 1) / 2
