"""What a run is remembered by: distributions, counts and reasons, in memory that does not grow with it."""

from __future__ import annotations

from collections import defaultdict
from math import sqrt

from prfaas.sim.request import Request
from prfaas.sim.stats import Histogram

SERIES = 240
"""Points of a time series, at most."""

PIECE_BITS = 4
"""The warm-up is kept in pieces whose length is at most an eighth of the time before them."""


class Measures:
    """What is measured of requests: by when they arrived, but `good`, those that met the objectives, by when they
    ended."""

    def __init__(self) -> None:
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.whole = Histogram()
        self.queued = Histogram()
        self.exposed = Histogram()
        self.good = 0
        self.offloaded = 0

    def merge(self, other: Measures) -> None:
        """Count all that `other` did."""
        self.ttft.merge(other.ttft)
        self.tpot.merge(other.tpot)
        self.whole.merge(other.whole)
        self.queued.merge(other.queued)
        self.exposed.merge(other.exposed)
        self.good += other.good
        self.offloaded += other.offloaded


class Tally(Measures):
    """Measures what lies between `from_ns`, where the warm-up ends, and `until_ns` (None: the end). What lies before is
    kept in pieces, for a run that ends early has a shorter warm-up. `ttft_slo_ns`, `tpot_slo_ns`: what a good request
    meets. Series have one value a window of `window_ns`: sums of TTFT, requests, those that came and that ended;
    `series`: at the end of each the time, who waits in each cluster, and bytes that crossed links until then.
    `last_ns`: when the last one ended."""

    def __init__(
        self,
        window_ns: int,
        ttft_slo_ns: int | None,
        tpot_slo_ns: int | None,
        *,
        from_ns: int = 0,
        until_ns: int | None = None,
    ) -> None:
        super().__init__()
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.arrived = 0
        self.ended = 0
        self.last_ns = 0
        self.reasons: dict[str, int] = {}
        self.moved = 0
        self.rescued = 0
        self.retried = 0
        self.expired = 0
        self.copied = 0
        self.copied_bytes = 0
        self.window_ns = window_ns
        self.from_ns = from_ns
        self.series: list[tuple[int, list[int], float]] = []
        self.series_ttft = [0] * SERIES
        self.series_first = [0] * SERIES
        self.series_arrived = [0] * SERIES
        self.series_ended = [0] * SERIES
        self._until_ns = until_ns
        self._ttft_slo = ttft_slo_ns
        self._tpot_slo = tpot_slo_ns
        self._early: defaultdict[int, Measures] = defaultdict(Measures)

    def came(self, now_ns: int) -> None:
        """A request arrived."""
        self.arrived += 1
        window = now_ns // self.window_ns
        if window < SERIES:
            self.series_arrived[window] += 1

    def finished(self, now_ns: int, request: Request) -> None:
        """Its last token is out."""
        self.ended += 1
        self.last_ns = now_ns
        if (window := now_ns // self.window_ns) < SERIES:
            self.series_ended[window] += 1
        ttft = request.first_ns - request.arrival_ns
        window = request.arrival_ns // self.window_ns
        if window < SERIES:
            self.series_ttft[window] += ttft
            self.series_first[window] += 1
        tpot = (now_ns - request.first_ns) // (request.output - 1) if request.output > 1 else 0
        into: Measures = self if request.counted else self._early[_piece(request.arrival_ns)]
        if request.source >= 0:
            into.offloaded += 1
        into.ttft.add(ttft)
        into.whole.add(now_ns - request.arrival_ns)
        into.tpot.add(tpot)
        into.queued.add(request.begun_ns - request.arrival_ns)
        into.exposed.add(request.landed_ns - request.done_ns)
        if (self._ttft_slo is None or ttft <= self._ttft_slo) and (self._tpot_slo is None or tpot <= self._tpot_slo):
            if now_ns < self.from_ns:
                self._early[_piece(now_ns)].good += 1
            elif self._until_ns is None or now_ns <= self._until_ns:
                self.good += 1

    def end_early(self, from_ns: int) -> None:
        """The warm-up ended then already, or up to an eighth later, where a piece begins."""
        begin = _piece(from_ns)
        if begin < from_ns:
            begin += 1 << max(0, from_ns.bit_length() - PIECE_BITS)
        for at_ns in [at_ns for at_ns in self._early if at_ns >= begin]:
            self.merge(self._early.pop(at_ns))
        self.from_ns = min(self.from_ns, begin)

    def grows(self, until_ns: int) -> bool:
        """Whether more came than ended in the second half of the time until then (the end of arrivals): by more than
        5 % of those that came in it, and by more than three times their root, which chance explains."""
        end = min(SERIES, until_ns // self.window_ns)
        half = end // 2
        came = sum(self.series_arrived[half:end])
        more = came - sum(self.series_ended[half:end])
        return half > 0 and more > max(0.05 * came, 3 * sqrt(came))

    def decided(self, reason: str) -> None:
        """One decision."""
        reasons = self.reasons
        reasons[reason] = reasons.get(reason, 0) + 1


def _piece(at_ns: int) -> int:
    """Where the piece begins that `at_ns` lies in."""
    shift = max(0, at_ns.bit_length() - PIECE_BITS)
    return at_ns >> shift << shift
