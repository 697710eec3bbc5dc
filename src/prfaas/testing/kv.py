"""Small KV layouts with every kind of part, and bytes for them that can be checked on arrival.

It knows layouts and extents; it does not know transports.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.transfer.chunk import split
from prfaas.core.transfer.extent import Extent, extent_bytes, needed
from prfaas.transport.base import LandedKV

PartBytes = dict[tuple[int, str], bytes]


def hybrid_layout(layers: int = 4, revision: str = "hybrid@1", heads: int = 4, width: int = 16) -> KVLayout:
    """Layers by turns: attention (k, v), a window, a recurrent pair, MLA."""
    parts: list[Part] = []
    for layer in range(layers):
        match layer % 4:
            case 0:
                parts += [Part(layer, name, PartKind.TOKENS, (heads, width), "float32") for name in ("k", "v")]
            case 1:
                parts.append(Part(layer, "k", PartKind.WINDOW, (heads, width), "bfloat16", window=64))
            case 2:
                parts.append(Part(layer, "recurrent", PartKind.STATE, (heads, width, width), "float32"))
                parts.append(Part(layer, "conv", PartKind.STATE, (heads * width, 4), "bfloat16"))
            case _:
                parts.append(Part(layer, "latent", PartKind.TOKENS, (1, 3 * width), "bfloat16", sharded=False))
    return KVLayout(revision, tuple(parts))


def plain_layout(layers: int = 1, heads: int = 8, width: int = 128) -> KVLayout:
    """Attention only: (heads * width * 2) bytes a token for each of k and v of each layer."""
    parts = [
        Part(layer, name, PartKind.TOKENS, (heads, width), "bfloat16") for layer in range(layers) for name in ("k", "v")
    ]
    return KVLayout(f"plain{layers}x{heads}x{width}", tuple(parts))


@dataclass(slots=True)
class Content:
    """Random bytes for everything that `length` tokens need, the same for the same `seed`."""

    layout: KVLayout
    length: int
    seed: int = 0
    whole: PartBytes = field(default_factory=dict)

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)
        parts = {(part.layer, part.name): part for part in self.layout.parts}
        for extent in needed(self.layout, self.length):
            key = (extent.layer, extent.part)
            self.whole[key] = chance.randbytes(extent_bytes(parts[key], extent))

    def pieces(self, limit_bytes: int) -> list[tuple[Extent, memoryview]]:
        """Everything as an engine might put it, in pieces of at most `limit_bytes`, in layout order."""
        found = []
        parts = {(part.layer, part.name): part for part in self.layout.parts}
        for extent in needed(self.layout, self.length):
            data = memoryview(self.whole[extent.layer, extent.part])
            for chunk in split(parts[extent.layer, extent.part], extent, 0, limit_bytes):
                found.append((chunk.extent, data[chunk.offset : chunk.offset + chunk.size]))
        return found

    def expected(self, held: int = 0) -> PartBytes:
        """What a receiver that holds `held` tokens must end with."""
        parts = {(part.layer, part.name): part for part in self.layout.parts}
        found: PartBytes = {}
        for extent in needed(self.layout, self.length, held):
            part = parts[extent.layer, extent.part]
            skipped = 0 if part.kind is PartKind.STATE else extent.start - part.first_row(self.length)
            found[part.layer, part.name] = self.whole[part.layer, part.name][skipped * part.unit_bytes :]
        return found

    def size(self, held: int = 0) -> int:
        """Bytes of `expected`."""
        return sum(len(data) for data in self.expected(held).values())


def bytes_of(landed: LandedKV) -> PartBytes:
    """What arrived, to compare with `Content.expected`."""
    return {key: bytes(data) for key, data in landed.parts.items()}


def total(pieces: Iterable[tuple[Extent, memoryview]]) -> int:
    """Bytes of some pieces."""
    return sum(len(data) for _, data in pieces)
