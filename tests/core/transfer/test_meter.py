"""The reported speed: bytes over the time in which those bytes moved; never above the line."""

from __future__ import annotations

from prfaas.core.transfer.meter import Meter

MS = 1_000_000


def burst(meter: Meter, now: int, chunks: int, spread: bool) -> int:
    """Chunks of 1000 bytes, one a millisecond: each spread over its millisecond, or at once at its beginning."""
    for number in range(chunks):
        for part in range(4):
            meter.read(now + (part + 1) * MS // 4 if spread else now, 250, under_way=part > 0)
        meter.chunk(more=number < chunks - 1)
        now += MS
    return now


def test_a_real_line_is_measured_as_it_is() -> None:
    meter = Meter(0)
    burst(meter, 0, 100, spread=True)
    assert meter.moving_ns == 100 * MS


def test_a_paced_line_is_not_taken_for_a_faster_one() -> None:
    """Chunks leave whole at their turn, so each comes at once: the line is what there is between them."""
    meter = Meter(0)
    burst(meter, 0, 100, spread=False)
    assert meter.moving_ns == 100 * MS


def test_waiting_for_the_engine_is_not_moving() -> None:
    for spread in (True, False):
        meter, now = Meter(0), 0
        for _ in range(10):
            now = burst(meter, now, 10, spread) + 500 * MS
        assert meter.moving_ns == 100 * MS


def test_a_stall_of_a_busy_line_is_moving() -> None:
    meter = Meter(0)
    now = burst(meter, 0, 1, spread=True)
    meter.chunk(more=True)
    burst(meter, now + 99 * MS, 1, spread=True)
    assert meter.moving_ns == 2 * 100 * MS


def test_one_chunk_is_measured_within() -> None:
    meter = Meter(0)
    burst(meter, 700 * MS, 1, spread=True)
    assert meter.moving_ns == MS


def test_when_nothing_is_known_all_the_time_counts() -> None:
    meter = Meter(0)
    meter.read(5 * MS, 1000, under_way=False)
    meter.chunk(more=False)
    assert meter.moving_ns == 5 * MS
