"""A sink for tests of engines: takes what a prefill hands over, demands what a receiver demands, and lands the bytes.

It knows extents and engines' Protocol; it does not know transports.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.transfer.extent import Coverage, Extent
from prfaas.engine.base import Engine
from prfaas.transport.base import LandedKV


class Gatherer:
    """`landed` is whole when `coverage` is complete; `puts` is what came, in order."""

    def __init__(self, layout: KVLayout, length: int) -> None:
        self.landed = LandedKV(length)
        self.coverage = Coverage(layout, length)
        self.puts: list[tuple[Extent, memoryview]] = []
        self.closed = False
        self._parts = {(part.layer, part.name): part for part in layout.parts}

    def put(self, extent: Extent, data: memoryview) -> None:
        """See `engine.base.KVSink`; AssertionError when an engine breaks its promises."""
        assert not self.closed, "a put after the prefill returned"
        part = self._parts[extent.layer, extent.part]
        assert self.coverage.fits(extent) is part
        assert extent.final
        assert data.contiguous
        assert data.readonly
        rows = 1 if part.kind is PartKind.STATE else extent.tokens
        assert data.nbytes == rows * part.unit_bytes
        assert self.coverage.add(extent), f"{extent} brought nothing new"
        length = self.landed.length
        buffer = self.landed.parts.setdefault((part.layer, part.name), bytearray(part.bytes_at(length)))
        at = 0 if part.kind is PartKind.STATE else (extent.start - part.first_row(length)) * part.unit_bytes
        buffer[at : at + data.nbytes] = data.cast("B")
        self.puts.append((extent, data))


async def gather(engine: Engine, tokens: Sequence[int]) -> Gatherer:
    """The Gatherer after a prefill of `tokens` on `engine`, complete."""
    sink = Gatherer(engine.layout, len(tokens))
    await engine.prefill(tokens, sink)
    sink.closed = True
    assert sink.coverage.complete, f"{sink.coverage.missing_bytes} bytes were never handed over"
    return sink
