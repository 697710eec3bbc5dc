"""Links smoothed over time, and what is read of the traffic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.balance.measured import MINUTE_NS, Measured, Span
from prfaas.core.balance.smooth import Smooth


def test_half_of_the_way_is_gone_after_tau() -> None:
    smooth = Smooth(1000, 10.0)
    smooth.add(1000, 20.0)
    assert smooth.value == 15.0


def test_the_first_sample_is_the_value() -> None:
    smooth = Smooth(1000)
    assert smooth.value is None
    smooth.add(5, 3.0)
    assert smooth.value == 3.0


@given(st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 1e12)), min_size=1), st.floats(0, 1e12))
def test_it_stays_within_what_was_seen(samples: list[tuple[int, float]], start: float) -> None:
    smooth, now = Smooth(1000, start), 0
    for later, value in samples:
        now += later
        smooth.add(now, value)
    assert smooth.value is not None
    every = [start, *(value for _, value in samples)]
    assert min(every) * (1 - 1e-9) <= smooth.value <= max(every) * (1 + 1e-9)


def test_time_that_runs_backwards_changes_nothing() -> None:
    smooth = Smooth(1000, 10.0, now_ns=500)
    smooth.add(100, 20.0)
    assert smooth.value == 10.0


def test_a_short_outage_moves_a_link_little_and_a_long_one_much() -> None:
    measured = Measured((100e9,), 100.0)
    measured.arrived(0, 10, 10)
    for minute in range(1, 3):
        measured.carried(minute * MINUTE_NS, 0, 0.0)
    traffic = measured.traffic(2 * MINUTE_NS)
    assert traffic is not None
    assert traffic.links_bps[0] > 80e9
    for minute in range(3, 61):
        measured.carried(minute * MINUTE_NS, 0, 0.0)
        measured.arrived(minute * MINUTE_NS, 10, 10)
    traffic = measured.traffic(60 * MINUTE_NS)
    assert traffic is not None
    assert traffic.links_bps[0] < 1e9


def test_rates_and_means_are_those_of_the_span() -> None:
    measured = Measured((), 100.0, Span(slot_ns=MINUTE_NS, slots=2))
    assert measured.traffic(0) is None
    for second in range(600):
        measured.arrived(second * 10**9, 1000, 1500)
        if second >= 300:
            measured.ended(second * 10**9, 50 if second % 2 else 150)
    traffic = measured.traffic(600 * 10**9)
    assert traffic is not None
    assert traffic.requests == 120
    assert traffic.arrivals_rps == pytest.approx(1.0)
    assert (traffic.output, traffic.context) == (100.0, (1500.0,))
    assert traffic.output_error == pytest.approx(0.5 / 120**0.5)


def test_until_an_answer_ended_its_length_is_what_was_said() -> None:
    measured = Measured((), 321.0)
    measured.arrived(0, 10, 10)
    traffic = measured.traffic(1)
    assert traffic is not None
    assert traffic.output == 321.0
    assert traffic.output_error == 1.0
