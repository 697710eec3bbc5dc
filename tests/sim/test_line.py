"""A line shares like max-min fairness by hand, and loses nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prfaas.core.routing.uplink import Uplink
from prfaas.sim.flow import Flow
from prfaas.sim.line import Line

GBPS = 10**9


@dataclass
class Rig:
    """A line, and the one heap that a world would have. `ended`: when each transfer was through."""

    bps: int
    ended: dict[object, int] = field(default_factory=dict)
    heap: list[tuple[int, int, int, object]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.line = Line(Uplink(self.bps, 0), self.plan, self.landed)
        self.flows: dict[object, Flow] = {}

    def plan(self, line: Line, at_ns: int, version: int) -> None:
        self.push(at_ns, 3, version)

    def push(self, at_ns: int, kind: int, what: object) -> None:
        self.count += 1
        heappush(self.heap, (at_ns, self.count, kind, what))

    def landed(self, now_ns: int, item: object) -> None:
        assert item not in self.ended
        self.ended[item] = now_ns

    def prefill(self, name: str, at_ns: int, takes_ns: int, kv_bytes: int) -> None:
        self.push(at_ns, 0, (name, takes_ns, kv_bytes))

    def run(self) -> None:
        while self.heap:
            now_ns, _, kind, what = heappop(self.heap)
            if kind == 0:
                name, takes_ns, kv_bytes = what  # type: ignore[misc]
                self.flows[name] = self.line.start(now_ns, name, kv_bytes, takes_ns)
                self.push(now_ns + takes_ns, 1, name)
            elif kind == 1:
                if self.line.finish(now_ns, self.flows[what]):
                    self.landed(now_ns, what)
            elif kind == 2:
                self.line.carries(now_ns, what)  # type: ignore[arg-type]
            else:
                self.line.tick(now_ns, what)  # type: ignore[arg-type]
            self.line.validate()


def test_what_the_line_carries_leaves_as_it_is_made() -> None:
    rig = Rig(8 * GBPS)  # a byte a ns
    rig.prefill("a", 0, 1000, 500)
    rig.prefill("b", 100, 1000, 400)
    rig.run()
    assert rig.ended == {"a": 1000, "b": 1100}
    assert rig.line.total == pytest.approx(900)


def test_one_that_is_made_too_fast_ends_when_the_line_is_through() -> None:
    rig = Rig(8 * GBPS)
    rig.prefill("a", 0, 1000, 3000)
    rig.run()
    assert rig.ended["a"] == pytest.approx(3000, abs=2)


def test_two_share_evenly_and_the_small_one_takes_what_it_makes() -> None:
    rig = Rig(8 * GBPS)
    rig.prefill("slow", 0, 10_000, 2000)  # 0.2 bytes a ns all the way
    rig.prefill("big", 0, 1000, 8000)  # 0.8 are left for it
    rig.run()
    assert rig.ended["slow"] == 10_000
    assert rig.ended["big"] == pytest.approx(10_000, abs=3)


def test_equals_end_together() -> None:
    rig = Rig(8 * GBPS)
    for name in "abcd":
        rig.prefill(name, 0, 10, 1000)
    rig.run()
    assert all(end == pytest.approx(4000, abs=8) for end in rig.ended.values())


def test_a_line_that_is_down_carries_nothing_and_catches_up() -> None:
    rig = Rig(8 * GBPS)
    rig.prefill("a", 0, 1000, 1000)
    rig.push(500, 2, 0)
    rig.push(5500, 2, 16 * GBPS)
    rig.run()
    assert rig.ended["a"] == pytest.approx(5500 + 250, abs=2)
    assert rig.line.total == pytest.approx(1000, abs=1)
    assert rig.line.calm


def test_what_is_aborted_leaves_its_share_to_others() -> None:
    rig = Rig(8 * GBPS)
    rig.prefill("a", 0, 10, 1000)
    rig.prefill("b", 0, 10, 1000)
    while rig.heap and rig.heap[0][0] <= 10:
        now_ns, _, kind, what = heappop(rig.heap)
        if kind == 0:
            rig.flows[what[0]] = rig.line.start(now_ns, *((what[0], what[2], what[1])))  # type: ignore[index]
            rig.push(now_ns + 10, 1, what[0])  # type: ignore[index]
        elif kind == 1:
            assert not rig.line.finish(now_ns, rig.flows[what])
    rig.line.abort(100, rig.flows["a"])
    rig.run()
    assert list(rig.ended) == ["b"]
    assert rig.ended["b"] == pytest.approx(100 + 1000 - 50, abs=3)


def slow_fluid(prefills: list[tuple[int, int, int]], rates: list[tuple[int, float]], step: int) -> list[float]:
    """The same by small steps of time: when each is through."""
    sent = [0.0] * len(prefills)
    ended = [-1.0] * len(prefills)
    now = 0
    while min(ended) < 0 and now < 10**7:
        rate = [r for at, r in rates if at <= now][-1]
        made = [min(1.0, max(0, now + step - at) / takes) * kv for at, takes, kv in prefills]
        left, open_ = rate * step, [i for i in range(len(prefills)) if made[i] - sent[i] > 1e-9]
        while open_ and left > 1e-9:
            share = left / len(open_)
            for i in list(open_):
                gives = min(share, made[i] - sent[i])
                sent[i] += gives
                left -= gives
                if made[i] - sent[i] <= 1e-9:
                    open_.remove(i)
        now += step
        for i, (at, takes, kv) in enumerate(prefills):
            if ended[i] < 0 and now >= at + takes and sent[i] >= kv - 1e-6:
                ended[i] = now
    return ended


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 3000), st.integers(50, 2000), st.integers(500, 4000)), min_size=1, max_size=5),
    st.lists(st.tuples(st.integers(1, 5000), st.sampled_from((0.25, 0.5, 2.0, 3.0))), max_size=3),
)
def test_it_is_what_small_steps_of_time_come_to(
    prefills: list[tuple[int, int, int]], changes: list[tuple[int, float]]
) -> None:
    rig = Rig(8 * GBPS)
    rates: list[tuple[int, float]] = [(0, 1.0), *sorted(changes), (6000, 1.0)]
    for at, bps in rates[1:]:
        rig.push(at, 2, int(bps * 8 * GBPS))
    for number, (at, takes, kv) in enumerate(prefills):
        rig.prefill(str(number), at, takes, kv)
    rig.run()
    expected = slow_fluid(prefills, rates, 5)
    for number, end in enumerate(expected):
        assert rig.ended[str(number)] == pytest.approx(end, abs=40 + 0.01 * end)
    assert rig.line.total == pytest.approx(sum(kv for _, _, kv in prefills), rel=0.01, abs=20)
    assert not rig.line.making
    assert not rig.line.drains
