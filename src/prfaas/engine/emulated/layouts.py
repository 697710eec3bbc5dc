"""KV layouts of emulated models: what their caches are made of, scaled to whole small widths.

It knows shapes; it does not know what bytes are in them. A scale shrinks the width of each head's row or state and
leaves layers, heads and kinds as they are, so that as many extents cross a link as in truth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.model.hf.load import load_layout

Scaled = Callable[[int], int]
"""The width that a width becomes."""


def layout_of(name: str, bytes_scale: float) -> KVLayout:
    """The layout called `name`, one of `LAYOUTS`, with `bytes_scale` (above 0, at most 1) of the bytes, or nearly."""

    def scaled(width: int) -> int:
        return max(1, round(width * bytes_scale))

    return KVLayout(f"emulated-{name}@{bytes_scale:g}", tuple(LAYOUTS[name](scaled)))


def _paper_1t(scaled: Scaled) -> Iterator[Part]:
    """The paper's 1T model, as far as Table 5 tells: its config is one of those that `prfaas model` knows."""
    for part in load_layout("paper-1t").parts:
        yield replace(part, shape=(part.shape[0], scaled(math.prod(part.shape[1:]))))


def _dense(scaled: Scaled) -> Iterator[Part]:
    """Eight layers of grouped-query attention, 8 heads of 128: 32 KiB a token."""
    for layer in range(8):
        yield from _attention(layer, 8, 128, scaled)


def _window(scaled: Scaled) -> Iterator[Part]:
    """Twelve layers, sliding window to attention 5:1, windows of 512 tokens."""
    for layer in range(12):
        yield from _attention(layer, 4, 128, scaled, 0 if layer % 6 == 5 else 512)


def _hybrid(scaled: Scaled) -> Iterator[Part]:
    """Every kind of part in four layers: attention, a window of 100 tokens, KDA, MLA."""
    yield from _attention(0, 2, 128, scaled)
    yield from _attention(1, 2, 128, scaled, 100)
    yield from _delta(2, 4, 64, scaled)
    yield Part(3, "latent", PartKind.TOKENS, (1, scaled(576)), "bfloat16", sharded=False)


def _attention(layer: int, heads: int, width: int, scaled: Scaled, window: int = 0) -> Iterator[Part]:
    kind = PartKind.WINDOW if window else PartKind.TOKENS
    for name in ("k", "v"):
        yield Part(layer, name, kind, (heads, scaled(width)), "bfloat16", window=window)


def _delta(layer: int, heads: int, width: int, scaled: Scaled) -> Iterator[Part]:
    yield Part(layer, "recurrent", PartKind.STATE, (heads, scaled(width * width)), "float32")
    for name in ("conv_q", "conv_k", "conv_v"):
        yield Part(layer, name, PartKind.STATE, (heads, scaled(width * 3)), "bfloat16")


LAYOUTS: dict[str, Callable[[Scaled], Iterator[Part]]] = {
    "paper-1t": _paper_1t,
    "dense": _dense,
    "window": _window,
    "hybrid": _hybrid,
}
