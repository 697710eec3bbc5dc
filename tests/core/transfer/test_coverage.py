"""Coverage against the obvious model: a set of (part, head, token) cells."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.transfer.extent import Arrived, Coverage, Extent, extent_bytes, needed
from prfaas.testing.kv import hybrid_layout

LAYOUT = hybrid_layout(heads=3, width=2)
PARTS = {(part.layer, part.name): part for part in LAYOUT.parts}


def cells(extent: Extent) -> set[tuple[int, str, int, int]]:
    state = PARTS[extent.layer, extent.part].kind is PartKind.STATE
    tokens = [0] if state else range(extent.start, extent.stop)
    return {(extent.layer, extent.part, head, token) for head in range(*extent.heads) for token in tokens}


@st.composite
def pieces(draw: st.DrawFn, length: int, held: int) -> list[Extent]:
    found = []
    for wanted in draw(st.lists(st.sampled_from(needed(LAYOUT, length, held)), max_size=25)):
        lo = draw(st.integers(0, wanted.heads[1] - 1))
        hi = draw(st.integers(lo + 1, wanted.heads[1]))
        start, stop = wanted.start, wanted.stop
        if PARTS[wanted.layer, wanted.part].kind is not PartKind.STATE:
            start = draw(st.integers(wanted.start, wanted.stop - 1))
            stop = draw(st.integers(start + 1, wanted.stop))
        found.append(Extent(wanted.layer, wanted.part, start, stop, (lo, hi)))
    return found


@given(st.data(), st.integers(1, 90), st.integers(0, 89))
def test_every_cell_is_accounted_for_once(data: st.DataObject, length: int, held: int) -> None:
    held = min(held, length - 1)
    coverage, seen = Coverage(LAYOUT, length, held), set[tuple[int, str, int, int]]()
    whole = sum(extent_bytes(PARTS[e.layer, e.part], e) for e in needed(LAYOUT, length, held))
    weight = {key: part.unit_bytes // part.shape[0] for key, part in PARTS.items()}
    for extent in data.draw(pieces(length, held)):
        assert coverage.fits(extent) is PARTS[extent.layer, extent.part]
        some = Arrived.SOME if cells(extent) & seen else Arrived.NONE
        assert coverage.arrived(extent) is (Arrived.ALL if cells(extent) <= seen else some)
        assert coverage.add(extent) == bool(cells(extent) - seen)
        seen |= cells(extent)
        assert coverage.missing_bytes == whole - sum(weight[layer, name] for layer, name, _, _ in seen)
    again = Coverage(LAYOUT, length, held)
    for extent in coverage.have():
        assert coverage.arrived(extent) is Arrived.ALL
        again.add(extent)
    assert again.missing_bytes == coverage.missing_bytes
    assert again.have() == coverage.have()


def test_any_order_completes_exactly_at_the_last_piece() -> None:
    chance = random.Random(7)
    extents = []
    for wanted in needed(LAYOUT, 100):
        state = PARTS[wanted.layer, wanted.part].kind is PartKind.STATE
        step = 100 if state else 7
        for head in range(*wanted.heads):
            for start in range(wanted.start, wanted.stop, step):
                stop = min(start + step, wanted.stop)
                extents.append(Extent(wanted.layer, wanted.part, start, stop, (head, head + 1)))
    chance.shuffle(extents)
    coverage = Coverage(LAYOUT, 100)
    for extent in extents:
        assert not coverage.complete
        assert coverage.add(extent)
    assert coverage.complete
    assert len(coverage.have()) == len(LAYOUT.parts)


@pytest.mark.parametrize(
    "extent",
    [
        Extent(9, "k", 0, 10, (0, 3)),
        Extent(0, "q", 0, 10, (0, 3)),
        Extent(0, "k", 9, 20, (0, 3)),  # begins in what is held
        Extent(0, "k", 20, 101, (0, 3)),
        Extent(0, "k", 20, 20, (0, 3)),
        Extent(0, "k", 20, 30, (0, 4)),
        Extent(0, "k", 20, 30, (2, 2)),
        Extent(0, "k", 20, 30, (-1, 2)),
        Extent(1, "k", 30, 40, (0, 3)),  # before the window
        Extent(2, "recurrent", 0, 99, (0, 3)),  # a state at another length is another state
        Extent(2, "recurrent", 1, 100, (0, 3)),
    ],
)
def test_what_a_transfer_does_not_need_does_not_fit(extent: Extent) -> None:
    assert Coverage(LAYOUT, 100, held=10).fits(extent) is None


def test_a_state_is_needed_even_when_every_row_but_one_is_held() -> None:
    coverage = Coverage(LAYOUT, 100, held=99)
    assert coverage.fits(Extent(2, "recurrent", 0, 100, (0, 3))) is not None
    assert coverage.fits(Extent(0, "k", 99, 100, (0, 3))) is not None
    assert coverage.fits(Extent(0, "k", 98, 100, (0, 3))) is None


def test_nothing_is_needed_when_all_is_held() -> None:
    assert Coverage(LAYOUT, 100, held=100).complete


def test_thousands_of_heads_cost_no_more_than_one() -> None:
    wide = KVLayout("wide", tuple(Part(i, "conv", PartKind.STATE, (12288, 4), "bfloat16") for i in range(60)))
    coverage = Coverage(wide, 1000)
    for layer in range(60):
        for lo in range(0, 12288, 4096):
            coverage.add(Extent(layer, "conv", 0, 1000, (lo, lo + 4096)))
    assert coverage.complete
