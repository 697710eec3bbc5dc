"""Small neighbours leave together: what an engine put in many small pieces becomes few chunks.

It knows extents and views; nothing is copied. A frame costs the same however small it is, so without this goodput would
fall with the size of an engine's blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from prfaas.core.transfer.extent import Extent


@dataclass(slots=True)
class Run:
    """Views whose bytes, one after the other, are those of `extent`."""

    extent: Extent
    views: list[memoryview]
    size: int

    def cut(self, offset: int, size: int) -> list[memoryview]:
        """`size` bytes from `offset`."""
        found = []
        for view in self.views:
            if size <= 0:
                break
            if offset < len(view):
                found.append(view[offset : offset + size])
                size -= len(found[-1])
            offset = max(0, offset - len(view))
        return found


def merged(pieces: Iterable[tuple[Extent, memoryview]], limit_bytes: int) -> list[Run]:
    """Join rows that follow each other, of the same part and heads, into runs of at most `limit_bytes`.

    In the order in which the runs began. A piece that is larger stays alone, and so does a state: it has no neighbour.
    """
    runs: list[Run] = []
    latest: dict[tuple[int, str, tuple[int, int]], Run] = {}
    for extent, data in pieces:
        key = (extent.layer, extent.part, extent.heads)
        run = latest.get(key)
        if run is not None and run.extent.stop == extent.start and run.size + len(data) <= limit_bytes:
            run.extent = replace(run.extent, stop=extent.stop)
            run.views.append(data)
            run.size += len(data)
        else:
            run = latest[key] = Run(extent, [data], len(data))
            runs.append(run)
    return runs
