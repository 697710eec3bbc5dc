"""A link as a fluid: transfers share it max-min, none faster than its prefill makes KV (layer-wise overlap).

While all together make less than the line carries it is calm: each has left when it is made, and nothing is computed.
Else transfers that are behind share what the others leave. Those that are made and only drain all get the same share,
so one running total of bytes a share, `turn`, tells when each is through, and an event costs as much as there are
prefills that run, not as there are transfers that wait.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, inf

from prfaas.core.errors import InvariantError
from prfaas.core.routing.uplink import Uplink
from prfaas.sim.flow import Flow

BYTES_NS = 8e9
"""Bits a second in one byte a nanosecond."""
CLOSE = 0.5
"""Bytes that are taken for none."""
WINDOW_NS = 10**9


class Line:
    """`plan(at_ns, version)`: call `tick` then. `landed(now_ns, item)`: the last byte of a transfer has left."""

    def __init__(
        self, uplink: Uplink, plan: Callable[[Line, int, int], None], landed: Callable[[int, object], None]
    ) -> None:
        self.uplink = uplink
        self.capacity = (uplink.now_bps or 0) / BYTES_NS
        self.calm = True
        self.making: dict[int, Flow] = {}
        self.draining: list[tuple[float, int, Flow]] = []
        self.drains = 0
        self.turn = 0.0
        self.share = 0.0
        self.rate = 0.0
        self.peak = 0.0
        self.total = 0.0
        self._untils = 0.0
        self._version = 0
        self._number = 0
        self._at_ns = 0
        self._window_ns = 0
        self._window = 0.0
        self._plan = plan
        self._landed = landed

    def start(self, now_ns: int, item: object, kv_bytes: int, takes_ns: int) -> Flow:
        """A prefill begins that makes `kv_bytes` in `takes_ns`."""
        self._advance(now_ns)
        self._number += 1
        flow = Flow(self, self._number, item, kv_bytes, now_ns, kv_bytes / takes_ns if takes_ns else inf)
        self.making[flow.number] = flow
        self.uplink.unsent_bytes += kv_bytes
        if self.calm:
            self.rate += flow.speed
            if self.rate <= self.capacity:
                return flow
        self._replan(now_ns)
        return flow

    def open(self, now_ns: int, item: object, kv_bytes: int) -> Flow:
        """`kv_bytes` will be made in parts; `makes` tells when."""
        self._advance(now_ns)
        self._number += 1
        flow = Flow(self, self._number, item, kv_bytes, now_ns, 0.0)
        self.making[flow.number] = flow
        self.uplink.unsent_bytes += kv_bytes
        if not self.calm:
            self._replan(now_ns)
        return flow

    def makes(self, now_ns: int, flow: Flow, kv_bytes: float, takes_ns: int) -> None:
        """From now on `kv_bytes` more of it are made in `takes_ns`; of 0 bytes: it rests."""
        self._advance(now_ns)
        flow.before, flow.began_ns = flow.made(now_ns), now_ns
        speed, flow.speed = flow.speed, kv_bytes / takes_ns if takes_ns else 0.0
        if self.calm:
            self.rate = max(0.0, self.rate + flow.speed - speed)
            if self.rate <= self.capacity:
                return
        self._replan(now_ns)

    def finish(self, now_ns: int, flow: Flow) -> bool:
        """Its prefill has ended. True: all has left; False: `landed` will tell."""
        self._advance(now_ns)
        del self.making[flow.number]
        if self.calm:
            self.uplink.unsent_bytes -= flow.kv_bytes
            self.rate = self.rate - flow.speed if self.making else 0.0
            return True
        left = flow.kv_bytes - flow.sent
        through = not flow.behind or left <= CLOSE
        if not through:
            flow.until = self.turn + left
            heappush(self.draining, (flow.until, flow.number, flow))
            self.drains += 1
            self._untils += flow.until
        self._replan(now_ns)
        return through

    def send(self, now_ns: int, item: object, kv_bytes: int) -> Flow:
        """`kv_bytes` that there are already leave from now on; `landed` will tell."""
        self._advance(now_ns)
        self._number += 1
        flow = Flow(self, self._number, item, kv_bytes, now_ns, 0.0)
        flow.until = self.turn + kv_bytes
        heappush(self.draining, (flow.until, flow.number, flow))
        self.drains += 1
        self._untils += flow.until
        self.uplink.unsent_bytes += kv_bytes
        self._replan(now_ns)
        return flow

    def abort(self, now_ns: int, flow: Flow) -> None:
        """What is left of it will not be sent."""
        self._advance(now_ns)
        flow.live = False
        if flow.number in self.making:
            del self.making[flow.number]
            if self.calm:
                self.uplink.unsent_bytes -= flow.kv_bytes
                self.rate = self.rate - flow.speed if self.making else 0.0
                return
        else:
            self.drains -= 1
            self._untils -= flow.until
        self._replan(now_ns)

    def carries(self, now_ns: int, bps: int) -> None:
        """From now on it does `bps`."""
        self._advance(now_ns)
        self.uplink.carries(now_ns, bps)
        self.capacity = bps / BYTES_NS
        if not self.calm or self.rate > self.capacity:
            self._replan(now_ns)

    def tick(self, now_ns: int, version: int) -> None:
        """What was planned is due."""
        if version != self._version:
            return
        self._advance(now_ns)
        through: list[object] = []
        while self.draining and (not self.draining[0][2].live or self.draining[0][0] <= self.turn + CLOSE):
            flow = heappop(self.draining)[2]
            if flow.live:
                self.drains -= 1
                self._untils -= flow.until
                through.append(flow.item)
        for flow in self.making.values():
            if flow.behind and flow.made(now_ns) - flow.sent <= CLOSE:
                flow.behind, flow.sent = False, flow.made(now_ns)
        self._replan(now_ns)
        for item in through:
            self._landed(now_ns, item)

    def book(self, now_ns: int) -> None:
        """Count what has left until now."""
        self._advance(now_ns)

    def validate(self) -> None:
        """Raises InvariantError when more leaves than the line carries, or than there is."""
        if self.rate > self.capacity * (1 + 1e-9):
            raise InvariantError(f"{self.rate} bytes a ns on a line of {self.capacity}")
        for flow in self.making.values():
            if flow.sent > flow.kv_bytes + CLOSE:
                raise InvariantError(f"{flow.sent} bytes sent of {flow.kv_bytes}")

    def _advance(self, now_ns: int) -> None:
        past = now_ns - self._at_ns
        if past <= 0:
            return
        if now_ns - self._window_ns >= WINDOW_NS:
            first = self._window_ns + WINDOW_NS - self._at_ns
            self.peak = max(self.peak, (self._window + self.rate * first) / WINDOW_NS)
            whole = now_ns - now_ns % WINDOW_NS
            if whole - self._window_ns > WINDOW_NS:
                self.peak = max(self.peak, self.rate)
            self._window_ns, self._window = whole, self.rate * (now_ns - whole)
        else:
            self._window += self.rate * past
        self.total += self.rate * past
        self._at_ns = now_ns
        if self.calm:
            return
        step = self.share * past
        self.turn += step
        unsent = 0.0
        for flow in self.making.values():
            flow.sent += step if flow.behind else flow.speed * past
            unsent += flow.kv_bytes - flow.sent
        if self.drains:
            unsent += self._untils - self.drains * self.turn
        self.uplink.unsent_bytes = int(unsent)

    def _replan(self, now_ns: int) -> None:
        """Share the line anew (water-filling) and plan the next change."""
        if self.calm:
            self.calm = False
            for flow in self.making.values():
                flow.behind, flow.sent = False, flow.made(now_ns)
        self._version += 1
        left, many = self.capacity, len(self.making) + self.drains
        keeping = [flow for flow in self.making.values() if not flow.behind]
        keeping.sort(key=_speed)
        for flow in keeping:
            if flow.speed * many <= left:
                left -= flow.speed
                many -= 1
            else:
                flow.behind = True
        left = max(0.0, left)
        if not many:
            self._calm_down()
            return
        self.share = left / many
        self.rate = self.capacity
        if self.share <= 0:
            return
        while self.draining and not self.draining[0][2].live:
            heappop(self.draining)
        soonest = (self.draining[0][0] - self.turn) / self.share if self.draining else inf
        for flow in self.making.values():
            if flow.behind and self.share > flow.speed:
                soonest = min(soonest, (flow.made(now_ns) - flow.sent) / (self.share - flow.speed))
        if soonest < inf:
            self._plan(self, now_ns + max(1, ceil(soonest)), self._version)

    def _calm_down(self) -> None:
        self.calm = True
        self.turn, self.draining, self._untils = 0.0, [], 0.0
        self.share = 0.0
        self.rate = sum(flow.speed for flow in self.making.values())
        self.uplink.unsent_bytes = sum(flow.kv_bytes for flow in self.making.values())


def _speed(flow: Flow) -> tuple[float, int]:
    return (flow.speed, flow.number)
