"""Bytes of KV by length, learned from what was reserved."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.routing.kvsize import KvSize


@given(
    st.integers(0, 10**9),
    st.integers(1, 10**6),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=60),
    st.integers(1, 10**6),
)
def test_states_and_rows_are_known_exactly_from_two_lengths_on(
    states: int, row: int, lengths: list[int], wanted: int
) -> None:
    size = KvSize()
    for tokens in lengths:
        size.seen(tokens, states + row * tokens)
    if max(lengths) >= 4 * min(lengths):
        assert size.at(wanted) == states + row * wanted
    if max(lengths) < 2 * min(lengths):
        assert size.at(wanted) is None


def test_a_window_that_is_full_grows_no_more() -> None:
    size = KvSize()
    for tokens in (10, 100, 1000, 4000, 16_000, 64_000):
        size.seen(tokens, 100 * min(tokens, 1000))
    assert size.at(50) == 5000
    assert size.at(30_000) == size.at(200_000) == 100_000


def test_nothing_is_said_by_nothing() -> None:
    size = KvSize()
    size.seen(10, 0)
    size.seen(0, 10)
    size.seen(1000, 0)
    assert size.at(100) is None
