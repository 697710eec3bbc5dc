"""Bins and the window: every length in its bin, and what is remembered is what came in the span, exactly."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.balance.bins import BINS, MOST_TOKENS, bin_of, top_of
from prfaas.core.balance.window import Window
from prfaas.core.errors import InvariantError


@given(st.integers(1, MOST_TOKENS))
def test_a_bin_holds_its_lengths_and_is_narrow(tokens: int) -> None:
    at = bin_of(tokens)
    bottom = top_of(at - 1) if at else 0
    assert bottom < tokens <= top_of(at)
    assert top_of(at) - bottom <= max(1, tokens / 32)


def test_bins_follow_each_other() -> None:
    tops = [top_of(at) for at in range(BINS)]
    assert tops[:64] == list(range(1, 65))
    assert all(a < b for a, b in pairwise(tops))
    assert [bin_of(top) for top in tops] == list(range(BINS))


def test_what_is_out_of_range_is_in_the_last_bins() -> None:
    assert bin_of(0) == bin_of(-5) == 0
    assert bin_of(MOST_TOKENS * 3) == BINS - 1
    assert top_of(BINS - 1) == MOST_TOKENS


COMES = st.tuples(st.integers(0, 25), st.integers(1, 5000), st.integers(0, 900), st.booleans())


@given(st.lists(COMES, max_size=60), st.integers(1, 7), st.integers(1, 5))
def test_it_remembers_what_came_in_its_span(come: list[tuple[int, int, int, bool]], slot: int, slots: int) -> None:
    window, now = Window(slot, slots), 0
    arrived: list[tuple[int, int, int]] = []
    ended: list[tuple[int, int]] = []
    for later, uncached, cached, ends in come:
        now += later
        if ends:
            window.ended(now, uncached)
            ended.append((now, uncached))
        else:
            window.arrived(now, uncached, uncached + cached)
            arrived.append((now, uncached, uncached + cached))
        window.validate()
    now += 3
    window.advance(now)
    window.validate()
    since = now - now % slot - slots * slot
    kept = [one for one in arrived if one[0] >= since]
    outputs = [tokens for at, tokens in ended if at >= since]
    assert window.requests == len(kept)
    assert window.outputs() == (len(outputs), sum(outputs), sum(x * x for x in outputs))
    found = window.lengths()
    if not kept:
        assert found is None
        return
    assert found is not None
    lengths, context = found
    assert lengths.mean == pytest.approx(sum(one[1] for one in kept) / len(kept))
    mean = sum(w * c for w, c in zip(lengths.weights, context, strict=True))
    assert mean == pytest.approx(sum(one[2] for one in kept) / len(kept))
    for top in lengths.tops:
        share = sum(one[1] <= top for one in kept) / len(kept)
        assert sum(lengths.weights[: lengths.cut(top)]) == pytest.approx(share)


def test_it_forgets_all_after_a_silence() -> None:
    window = Window(10, 3)
    window.arrived(5, 100, 100)
    window.advance(10**9)
    assert window.lengths() is None
    assert window.requests == 0


def test_memory_is_bounded_by_slots_and_bins() -> None:
    window = Window(1, 4)
    for now in range(500):
        for tokens in (1, 1000, MOST_TOKENS, 2 * MOST_TOKENS):
            window.arrived(now, tokens, tokens)
    assert len(window._old) == 4
    assert len(window._all) == 3


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=200), st.integers(1, 20))
def test_fewer_bins_keep_the_mean(lengths: list[int], most: int) -> None:
    window = Window(10, 1)
    for tokens in lengths:
        window.arrived(0, tokens, tokens)
    found = window.lengths(most)
    assert found is not None
    assert len(found[0]) <= most
    assert found[0].mean == pytest.approx(sum(lengths) / len(lengths))


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(InvariantError, match="0 slots"):
        Window(10, 0)
