"""What a run is remembered by: distributions, counts and reasons, in memory that does not grow with it."""

from __future__ import annotations

from prfaas.sim.request import Request
from prfaas.sim.stats import Histogram

SERIES = 240
"""Points of a time series, at most."""


class Tally:
    """Counts requests that are `counted`: those that arrived after the warm-up. `ttft_slo_ns`, `tpot_slo_ns`: what a
    good one meets. Series have one value a window of `window_ns`: sums of TTFT, requests, those that came; `series`: at
    the end of each the time, who waits in each cluster, and bytes that crossed links until then."""

    def __init__(self, window_ns: int, ttft_slo_ns: int | None, tpot_slo_ns: int | None) -> None:
        self.ttft = Histogram()
        self.tpot = Histogram()
        self.whole = Histogram()
        self.queued = Histogram()
        self.exposed = Histogram()
        self.undecoded = Histogram()
        self.good = 0
        self.offloaded = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.arrived = 0
        self.ended = 0
        self.reasons: dict[str, int] = {}
        self.moved = 0
        self.rescued = 0
        self.retried = 0
        self.expired = 0
        self.copied = 0
        self.copied_bytes = 0
        self.window_ns = window_ns
        self.series: list[tuple[int, list[int], float]] = []
        self.series_ttft = [0] * SERIES
        self.series_first = [0] * SERIES
        self.series_arrived = [0] * SERIES
        self._ttft_slo = ttft_slo_ns
        self._tpot_slo = tpot_slo_ns

    def came(self, now_ns: int) -> None:
        """A request arrived."""
        self.arrived += 1
        window = now_ns // self.window_ns
        if window < SERIES:
            self.series_arrived[window] += 1

    def finished(self, now_ns: int, request: Request) -> None:
        """Its last token is out."""
        self.ended += 1
        ttft = request.first_ns - request.arrival_ns
        window = request.arrival_ns // self.window_ns
        if window < SERIES:
            self.series_ttft[window] += ttft
            self.series_first[window] += 1
        if not request.counted:
            return
        if request.source >= 0:
            self.offloaded += 1
        self.ttft.add(ttft)
        self.whole.add(now_ns - request.arrival_ns)
        tpot = (now_ns - request.first_ns) // (request.output - 1) if request.output > 1 else 0
        self.tpot.add(tpot)
        self.queued.add(request.begun_ns - request.arrival_ns)
        self.exposed.add(request.landed_ns - request.done_ns)
        if (self._ttft_slo is None or ttft <= self._ttft_slo) and (self._tpot_slo is None or tpot <= self._tpot_slo):
            self.good += 1

    def decided(self, reason: str) -> None:
        """One decision."""
        reasons = self.reasons
        reasons[reason] = reasons.get(reason, 0) + 1
