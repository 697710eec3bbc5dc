"""Unverified bytes never touch verified ones, whatever overlaps."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.cache.layout import Part
from prfaas.core.errors import ProtocolError
from prfaas.core.transfer.extent import Coverage, Extent
from prfaas.testing.kv import Content, bytes_of, hybrid_layout
from prfaas.transport.landing import Landing
from prfaas.wire.frame import Data
from prfaas.wire.messages import DataHead, data_head

LAYOUT = hybrid_layout()
PARTS = {(part.layer, part.name): part for part in LAYOUT.parts}
LENGTH = 40
CONTENT = Content(LAYOUT, LENGTH, 3)


class Lane:
    """A payload on its way: as a decoder has it."""

    def __init__(self, landing: Landing, number: int, extent: Extent, data: bytes) -> None:
        self.landing, self.number, self.data = landing, number, data
        self.received = 0
        self.head = head_of(extent)
        self.target = landing.place(number, self.head, len(data), self)

    def redirect(self, target: memoryview) -> None:
        self.target = target

    def write(self, count: int, damaged: bool = False) -> None:
        end = min(self.received + count, len(self.data))
        piece = self.data[self.received : end]
        if self.target is not None:
            self.target[self.received : end] = bytes(len(piece)) if damaged else piece
        self.received = end

    def settle(self, coverage: Coverage) -> None:
        self.write(len(self.data))
        extent = self.landing.settle(self.number, Data(self.head, len(self.data), self.target, True))
        if extent is not None:
            coverage.add(extent)


def head_of(extent: Extent) -> DataHead:
    return data_head(PARTS[extent.layer, extent.part], extent)


def slice_of(extent: Extent) -> bytes:
    part: Part = PARTS[extent.layer, extent.part]
    whole, width = CONTENT.whole[extent.layer, extent.part], part.unit_bytes // part.shape[0]
    rows = [0] if part.kind.value == "state" else range(extent.start - part.first_row(LENGTH), extent.stop)
    return b"".join(
        whole[row * part.unit_bytes + extent.heads[0] * width : row * part.unit_bytes + extent.heads[1] * width]
        for row in list(rows)[: 1 if part.kind.value == "state" else extent.tokens]
    )


@given(st.integers(0, 2**32))
def test_overlapping_chunks_on_many_lanes_give_the_right_bytes(seed: int) -> None:
    """Chunks start, are damaged and broken off, overlap on several lanes at once; in the end everything is right."""
    chance = random.Random(seed)
    coverage = Coverage(LAYOUT, LENGTH)
    landing = Landing(coverage)
    lanes: dict[int, Lane] = {}
    verified: dict[tuple[int, str], bytes] = {}

    def random_extent() -> Extent:
        part = chance.choice(LAYOUT.parts)
        lo = chance.randrange(part.shape[0])
        heads = (lo, chance.randint(lo + 1, part.shape[0])) if chance.random() < 0.5 else (0, part.shape[0])
        if part.kind.value == "state":
            return Extent(part.layer, part.name, 0, LENGTH, heads)
        start = chance.randrange(LENGTH)
        return Extent(part.layer, part.name, start, chance.randint(start + 1, LENGTH), heads)

    for _ in range(150):
        number = chance.randrange(4)
        lane = lanes.get(number)
        if lane is None:
            extent = random_extent()
            lanes[number] = Lane(landing, number, extent, slice_of(extent))
        elif chance.random() < 0.4:
            lane.write(chance.randrange(1, 3000), damaged=True)
            landing.drop(number)
            del lanes[number]
        elif chance.random() < 0.5:
            lane.write(chance.randrange(1, 3000))
        else:
            lane.settle(coverage)
            del lanes[number]
    for number, lane in list(lanes.items()):
        lane.settle(coverage)
        del lanes[number]
    for part in LAYOUT.parts:
        whole = Extent(part.layer, part.name, 0, LENGTH, (0, part.shape[0]))
        Lane(landing, 9, whole, slice_of(whole)).settle(coverage)
    assert coverage.complete
    assert bytes_of(landing.hand_over()) == CONTENT.expected()
    assert verified == {}


def test_what_is_booked_is_dropped_and_what_is_odd_is_told() -> None:
    coverage = Coverage(LAYOUT, LENGTH)
    landing = Landing(coverage)
    extent = Extent(0, "k", 0, 10, (0, 4))
    first = Lane(landing, 0, extent, slice_of(extent))
    assert first.target is not None
    first.settle(coverage)
    again = Lane(landing, 0, extent, bytes(len(slice_of(extent))))
    assert again.target is None
    assert landing.settle(0, Data(again.head, len(again.data), None, True)) is None
    odd = head_of(extent)
    assert landing.place(0, odd, 5, first) is None
    with pytest.raises(ProtocolError, match="extent"):
        landing.settle(0, Data(odd, 5, None, True))
    with pytest.raises(ProtocolError, match="head"):
        landing.settle(0, Data(None, 5, None, True))


def test_what_comes_again_after_the_hand_over_takes_no_memory() -> None:
    """A resume may bring chunks twice, and the second ones late: the engine has the buffers by then."""
    coverage = Coverage(LAYOUT, LENGTH)
    landing = Landing(coverage)
    wholes = [Extent(part.layer, part.name, 0, LENGTH, (0, part.shape[0])) for part in LAYOUT.parts]
    for whole in wholes:
        Lane(landing, 0, whole, slice_of(whole)).settle(coverage)
    assert coverage.complete
    landing.hand_over()
    for whole in wholes:
        Lane(landing, 0, whole, slice_of(whole)).settle(coverage)
    assert landing.hand_over().parts == {}
