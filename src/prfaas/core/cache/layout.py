"""KV layout: the parts that a model's cache is made of, and what they weigh.

It knows shapes and bytes; it does not know tensors, engines' blocks or wires. What a layer is, is asked of that layer:
each part stands for one tensor of one layer, so a layer may have one (MLA), two (GQA), or four (KDA) of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "uint8": 1, "int8": 1}


def shown(name: str) -> str:
    """The name of a layout (`wire.layout`), with as much of the fingerprint at its end as a person wants."""
    said, between, digest = name.rpartition(", ")
    return f"{said}{between}{digest[:12]}"


class PartKind(StrEnum):
    """How a part grows with the sequence, and thereby what of it can be resumed."""

    TOKENS = "tokens"
    """One row a token: full attention, MLA. Any prefix can be resumed."""
    WINDOW = "window"
    """One row a token, of which only the last `window` are kept: sliding-window attention."""
    STATE = "state"
    """One value for the whole sequence, true at exactly one length: recurrent and convolution state."""


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of one layer's cache.

    `shape`: of one token's row as (heads, width) for TOKENS and WINDOW; of the whole value for STATE, heads first where
    there are heads. `window`: rows that are kept (WINDOW only). `sharded`: split by heads under tensor parallelism;
    else every rank holds the same (MLA).
    """

    layer: int
    name: str
    kind: PartKind
    shape: tuple[int, ...]
    dtype: str
    window: int = 0
    sharded: bool = True

    @property
    def unit_bytes(self) -> int:
        """Bytes of one token's row, or of the whole state."""
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]

    def first_row(self, length: int) -> int:
        """First token whose row is still needed to resume at `length` tokens."""
        return max(0, length - self.window) if self.kind is PartKind.WINDOW else 0

    def bytes_at(self, length: int) -> int:
        """Bytes of this part for a sequence of `length` tokens."""
        if length <= 0:
            return 0
        if self.kind is PartKind.STATE:
            return self.unit_bytes
        return (length - self.first_row(length)) * self.unit_bytes


@dataclass(frozen=True, slots=True)
class KVLayout:
    """All parts of one model's cache, in layer order. `revision` names model and weights; both sides must agree."""

    revision: str
    parts: tuple[Part, ...]

    def bytes_at(self, length: int) -> int:
        """S_kv(length), bytes: the whole cache of one sequence (paper, Table 5)."""
        return sum(part.bytes_at(length) for part in self.parts)

    def layers(self) -> tuple[int, ...]:
        """The layers that have a cache, ascending."""
        return tuple(sorted({part.layer for part in self.parts}))

    def of_layer(self, layer: int) -> tuple[Part, ...]:
        """The parts of one layer, in layout order."""
        return tuple(part for part in self.parts if part.layer == layer)
