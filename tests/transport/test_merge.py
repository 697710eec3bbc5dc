"""Merging changes neither bytes nor what they are, and never copies."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.transfer.extent import Extent
from prfaas.testing.conformance import Pair, put_all
from prfaas.testing.kv import Content, plain_layout
from prfaas.transport.stream.merge import Run, merged


def test_blocks_that_come_by_turns_are_joined_by_part() -> None:
    pieces = [
        (Extent(layer, part, at, at + 16, (0, 4)), memoryview(bytes([at]) * 16))
        for at in range(0, 96, 16)
        for layer in range(2)
        for part in "kv"
    ]
    runs = merged(pieces, limit_bytes=64)
    assert [(run.extent.layer, run.extent.part, run.extent.start, run.extent.stop) for run in runs] == [
        (layer, part, a, b) for a, b in ((0, 64), (64, 96)) for layer in range(2) for part in "kv"
    ]
    assert sum(len(run.views) for run in runs) == len(pieces)


def test_what_is_no_neighbour_stays_alone() -> None:
    extents = [
        Extent(0, "k", 0, 4, (0, 4)),
        Extent(0, "k", 5, 8, (0, 4)),
        Extent(0, "k", 8, 12, (0, 2)),
        Extent(0, "k", 4, 5, (0, 4)),
        Extent(1, "state", 0, 12, (0, 2)),
        Extent(1, "state", 0, 12, (2, 4)),
    ]
    assert [run.extent for run in merged([(e, memoryview(b"x")) for e in extents], 100)] == extents


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.data())
def test_a_cut_is_a_slice(sizes: list[int], data: st.DataObject) -> None:
    views = [memoryview(random.Random(i).randbytes(size)) for i, size in enumerate(sizes)]
    whole = b"".join(views)
    offset = data.draw(st.integers(0, len(whole) - 1))
    size = data.draw(st.integers(1, len(whole) - offset))
    run = Run(Extent(0, "k", 0, 1, (0, 1)), views, len(whole))
    cut = run.cut(offset, size)
    assert b"".join(cut) == whole[offset : offset + size]
    assert all(cut)


async def test_thousands_of_small_blocks_are_few_chunks(pair: Pair) -> None:
    pair.layout = plain_layout(layers=2, heads=2, width=32)
    content = Content(pair.layout, 4096)
    held = 1000
    sending = pair.offer("r.0", 4096)
    put_all(sending, content.pieces(16 * 128))
    assert sending.machine.put_chunks <= 4 * 2  # type: ignore[attr-defined]
    receiving = pair.receive("r.0", 4096, held=held)
    await pair.settle(sending, receiving, content, held)
