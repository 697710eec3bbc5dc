"""A sink for tests of engines: takes what a prefill hands over, demands what a receiver demands, and lands the bytes.

It knows extents and engines' Protocol; it does not know transports.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.transfer.chunk import Chunk, clip
from prfaas.core.transfer.extent import Coverage, Extent
from prfaas.engine.base import Engine
from prfaas.transport.base import LandedKV


class Gatherer:
    """`landed` is whole when `coverage` is complete; `puts` is what came, in order. `held`: tokens that need not come;
    then it is `Clipped` that an engine puts into."""

    def __init__(self, layout: KVLayout, length: int, held: int = 0) -> None:
        self.landed = LandedKV(length, held)
        self.coverage = Coverage(layout, length, held)
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
        length, first = self.landed.length, self.coverage.first_row(part)
        whole = part.unit_bytes * (1 if part.kind is PartKind.STATE else length - first)
        buffer = self.landed.parts.setdefault((part.layer, part.name), bytearray(whole))
        at = 0 if part.kind is PartKind.STATE else (extent.start - first) * part.unit_bytes
        buffer[at : at + data.nbytes] = data.cast("B")
        self.puts.append((extent, data))


class Clipped:
    """A sink in front of a Gatherer that leaves out what it does not want, as a sender does."""

    def __init__(self, sink: Gatherer) -> None:
        self._sink = sink
        self._parts = {(part.layer, part.name): part for part in sink.coverage.layout.parts}

    def put(self, extent: Extent, data: memoryview) -> None:
        """See `engine.base.KVSink`."""
        part = self._parts[extent.layer, extent.part]
        whole = Chunk(0, extent, 0, data.nbytes)
        wanted = clip(whole, part, self._sink.coverage.first_row(part))
        if wanted is not None:
            self._sink.put(wanted.extent, data.cast("B")[wanted.offset : wanted.offset + wanted.size])


async def gather(engine: Engine, tokens: Sequence[int], held: int = 0) -> Gatherer:
    """The Gatherer after a prefill of `tokens` on `engine`, complete."""
    sink = Gatherer(engine.layout, len(tokens), held)
    await engine.prefill(tokens, Clipped(sink) if held else sink)
    sink.closed = True
    assert sink.coverage.complete, f"{sink.coverage.missing_bytes} bytes were never handed over"
    return sink
