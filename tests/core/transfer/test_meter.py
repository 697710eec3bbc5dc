"""The reported speed: bytes over the time in which those bytes moved."""

from __future__ import annotations

from prfaas.core.transfer.meter import Meter

MS = 1_000_000


def test_a_steady_stream_is_measured_as_it_is() -> None:
    meter = Meter(0)
    for i in range(1, 101):
        meter.read(i * MS, 1000, busy=i > 1)
    assert meter.moving_ns == 100 * MS


def test_waiting_for_the_engine_is_not_moving() -> None:
    meter = Meter(0)
    now = 0
    for _ in range(10):
        for i in range(10):
            now += MS
            meter.read(now, 1000, busy=i > 0)
        now += 500 * MS
    # Of each pause only what the first read after it needs at the pace of the others is counted.
    assert meter.moving_ns == 100 * MS


def test_a_stall_of_a_busy_line_is_moving() -> None:
    meter = Meter(0)
    meter.read(MS, 1000, busy=False)
    meter.read(100 * MS, 1000, busy=True)
    meter.read(101 * MS, 1000, busy=True)
    assert meter.moving_ns == 150 * MS


def test_the_first_bytes_do_not_make_the_line_faster() -> None:
    """A burst comes at once and the rest at the line's pace: the burst is counted at that pace too."""
    meter = Meter(0)
    meter.read(0, 1000, busy=False)
    for i in range(1, 10):
        meter.read(i * MS, 1000, busy=True)
    assert meter.moving_ns == 10 * MS


def test_when_nothing_is_known_all_the_time_counts() -> None:
    meter = Meter(0)
    meter.read(5 * MS, 1000, busy=False)
    assert meter.moving_ns == 5 * MS
