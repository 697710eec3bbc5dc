"""What is on its way over a link: never more than began, never less than what is not made, drained as the line is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.ids import TransferId
from prfaas.core.routing.crossing import Crossing
from prfaas.core.routing.uplink import Uplink

SECOND_NS = 10**9


def crossing(bps: int | None) -> Crossing:
    return Crossing(Uplink(bps, 0))


def test_a_wide_line_has_left_what_is_not_made_yet() -> None:
    one = crossing(10**12)
    one.begin(0, TransferId("a"), 10 * SECOND_NS, 1000)
    assert one.uplink.unsent_bytes == 1000
    one.book(4 * SECOND_NS)
    assert one.uplink.unsent_bytes == 600
    one.book(11 * SECOND_NS)
    assert one.uplink.unsent_bytes == 0


def test_a_thin_line_carries_what_it_carries() -> None:
    one = crossing(8 * 10)  # ten bytes a second
    one.begin(0, TransferId("a"), SECOND_NS, 1000)
    one.book(20 * SECOND_NS)
    assert one.uplink.unsent_bytes == 800
    one.begin(20 * SECOND_NS, TransferId("b"), 21 * SECOND_NS, 50)
    assert one.uplink.unsent_bytes == 850
    one.end(21 * SECOND_NS, TransferId("a"))
    assert one.uplink.unsent_bytes == 50, "what is left is at the most what b has"
    one.end(22 * SECOND_NS, TransferId("b"))
    assert one.uplink.unsent_bytes == 0


@given(
    st.sampled_from([None, 0, 80, 10**6, 10**12]),
    st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(0, 3), st.integers(0, 20), st.integers(0, 10**6))),
)
def test_it_stays_between_its_bounds_and_ends_at_nothing(
    bps: int | None, steps: list[tuple[int, bool, int, int, int]]
) -> None:
    one, now, flows = crossing(bps), 0, dict[TransferId, tuple[int, int, int]]()
    for past, begins, which, takes, kv_bytes in steps:
        now += past * SECOND_NS
        name = TransferId(str(which))
        if begins and name not in flows:
            flows[name] = (now, now + takes * SECOND_NS, kv_bytes)
            one.begin(now, name, now + takes * SECOND_NS, kv_bytes)
        elif not begins:
            flows.pop(name, None)
            one.end(now, name)
        unmade = sum(size * (end - now) // (end - begin) for begin, end, size in flows.values() if now < end)
        assert unmade <= one.uplink.unsent_bytes <= sum(size for _, _, size in flows.values())
    for name in flows:
        one.end(now, name)
    assert (one.uplink.unsent_bytes, len(one)) == (0, 0)
