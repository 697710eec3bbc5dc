"""The reported speed: bytes over the time in which those bytes moved."""

from __future__ import annotations

from prfaas.core.transfer.meter import Meter

MS = 1_000_000


def test_a_steady_stream_is_measured_as_it_is() -> None:
    meter = Meter(0)
    for i in range(1, 101):
        meter.read(i * MS, 1000, under_way=i % 10 != 0)
    assert (meter.bytes_moved, meter.moving_ns) == (100_000, 100 * MS)


def test_waiting_for_the_engine_is_not_moving() -> None:
    meter = Meter(0)
    now = 0
    for _ in range(10):
        for i in range(10):
            now += MS
            meter.read(now, 1000, under_way=i > 0)
        now += 500 * MS
    # Of each pause only what the first read of the burst needs at the pace so far is counted.
    assert meter.bytes_moved == 100_000
    assert meter.moving_ns == 100 * MS


def test_a_stall_in_the_middle_of_a_frame_is_moving() -> None:
    meter = Meter(0)
    meter.read(MS, 1000, under_way=False)
    meter.read(101 * MS, 1000, under_way=True)
    assert meter.moving_ns == 101 * MS
