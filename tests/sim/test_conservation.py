"""What must hold at every instant of a run, whatever goes wrong: requests, bytes, links.

Lines are real ones that also count what is said to them: each transfer that begins on a line ends there once, through
or aborted; what it sent until then, added up over transfers, is what the line booked; between two events no line does
more than it can then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.routing.catalog import NAMES, policy_of
from prfaas.core.routing.uplink import Uplink
from prfaas.sim.faults import Fault
from prfaas.sim.flow import Flow
from prfaas.sim.line import CLOSE, Line
from prfaas.sim.request import Request
from prfaas.sim.tally import Tally

from .conftest import SECOND_NS, drawn, flat, run

CLUSTERS = (("home", 2, 400_000), ("far", 2, 150_000), ("other", 1, 200_000))
ROUNDING = 1e-6


class Counting(Line):
    """A line that knows its transfers, and the bytes that each has sent when it ends."""

    made: list[Counting]

    def __init__(self, uplink: Uplink, plan: Callable[[Line, int, int], None], landed: Callable[[int, object], None]):
        super().__init__(uplink, plan, self.through)
        self.live: dict[int, Flow] = {}
        self.whole, self.parts, self.worst = 0, 0.0, 0.0
        self._told = landed
        self.made.append(self)

    def _advance(self, now_ns: int) -> None:
        if now_ns > self._at_ns and self.rate:
            self.worst = max(self.worst, self.rate / self.capacity if self.capacity else float("inf"))
        super()._advance(now_ns)

    def start(self, now_ns: int, item: object, kv_bytes: int, takes_ns: int) -> Flow:
        flow = super().start(now_ns, item, kv_bytes, takes_ns)
        self.live[id(item)] = flow
        return flow

    def finish(self, now_ns: int, flow: Flow) -> bool:
        done = super().finish(now_ns, flow)
        if done:
            self.end(flow)
        return done

    def through(self, now_ns: int, item: object) -> None:
        self.end(self.live[id(item)])
        self._told(now_ns, item)

    def end(self, flow: Flow) -> None:
        """All of it has left: once."""
        assert self.live.pop(id(flow.item)) is flow
        self.whole += flow.kv_bytes

    def abort(self, now_ns: int, flow: Flow) -> None:
        self.book(now_ns)
        assert self.live.pop(id(flow.item)) is flow
        self.parts += flow.made(now_ns) if self.calm else flow.kv_bytes - flow.left
        super().abort(now_ns, flow)


faults = st.builds(
    lambda kind, cluster, at, lasts, bps: Fault(
        kind, "far" if kind == "link" else cluster, at, at + lasts, 0, "home" if kind == "link" else "", bps, 3.0
    ),
    st.sampled_from(("node_down", "service_down", "link", "slow_node")),
    st.sampled_from(("home", "far", "other")),
    st.integers(0, 15 * SECOND_NS),
    st.integers(1, 8 * SECOND_NS),
    st.sampled_from((0, 10**6, 10**9)),
)


@settings(max_examples=150)
@given(
    st.sampled_from(NAMES),
    st.integers(0, 10**6),
    st.lists(faults, max_size=4),
    st.sampled_from((10**7, 3 * 10**8, 10**11)),
)
def test_requests_end_once_bytes_are_booked_once_and_no_link_is_overfull(
    name: str, seed: int, wrong: list[Fault], bps: int
) -> None:
    ended: Counter[int] = Counter()
    finished = Tally.finished

    def count(tally: Tally, now_ns: int, request: Request) -> None:
        ended[request.number] += 1
        finished(tally, now_ns, request)

    Counting.made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prfaas.sim.world.Line", Counting)
        patch.setattr(Tally, "finished", count)
        world = run(flat(CLUSTERS, bps=bps), policy_of(name, 2000), drawn(seed, 2.0, mixed), 15, faults=wrong)
    assert sorted(ended.elements()) == list(range(world.tally.arrived))
    assert len(Counting.made) == len(world.lines)
    for line in Counting.made:
        assert not line.live
        assert line.worst <= 1 + ROUNDING
        assert line.total == pytest.approx(line.whole + line.parts, rel=ROUNDING, abs=CLOSE * (line._number + 1))


def mixed(chance: Random) -> int:
    return chance.choice((100, 500, 1000, 5000, 20_000))
