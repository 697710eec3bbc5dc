"""What is known of a link from a PrfaaS cluster to a PD cluster: how wide it is, and what has yet to cross.

It knows bytes and rates as they were told; it does not know how they share the line. What is unknown is None, and then
is not held against the link.
"""

from __future__ import annotations

BITS_NS = 8 * 10**9
"""Bits of a byte times nanoseconds of a second."""
NEVER_NS = 1 << 62


class Uplink:
    """`nominal_bps`: what the line is meant to do; `now_bps`: what it does. `since_ns`: when it fell below nominal,
    None while it is not. `unsent_bytes`: KV of prefills that have begun and that has not arrived; `queued_bytes`: of
    those that wait for a node. `rtt_ns`: the round trip."""

    __slots__ = ("nominal_bps", "now_bps", "queued_bytes", "rtt_ns", "since_ns", "unsent_bytes")

    def __init__(self, nominal_bps: int | None, rtt_ns: int) -> None:
        self.nominal_bps = nominal_bps
        self.now_bps = nominal_bps
        self.since_ns: int | None = None
        self.unsent_bytes = 0
        self.queued_bytes = 0
        self.rtt_ns = rtt_ns

    def carries(self, now_ns: int, bps: int) -> None:
        """It does `bps` from now on."""
        self.now_bps = bps
        if self.nominal_bps is None or 10 * bps >= 9 * self.nominal_bps:
            self.since_ns = None
        elif self.since_ns is None:
            self.since_ns = now_ns

    def drain_ns(self, now_ns: int, byte_count: int) -> int:
        """How long `byte_count` bytes probably take.

        At the present rate; or, if that is below nominal, at the nominal rate once the fault is over, which is
        expected to last as long again as it has lasted: whichever is sooner.
        """
        now_bps, nominal = self.now_bps, self.nominal_bps
        if now_bps is None:
            return 0
        at_present = byte_count * BITS_NS // now_bps if now_bps > 0 else NEVER_NS
        if self.since_ns is None or not nominal:
            return at_present
        recovered = now_ns - self.since_ns + byte_count * BITS_NS // nominal
        return at_present if at_present < recovered else recovered

    def present_ns(self, byte_count: int) -> int:
        """How long they take if nothing changes."""
        if self.now_bps is None:
            return 0
        return byte_count * BITS_NS // self.now_bps if self.now_bps > 0 else NEVER_NS
