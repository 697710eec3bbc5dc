"""KV layouts of emulated models: what their caches are made of, scaled to whole small widths.

It knows shapes; it does not know what bytes are in them. A scale shrinks the width of each head's row or state and
leaves layers, heads and kinds as they are, so that as many extents cross a link as in truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prfaas.core.cache.layout import KVLayout, Part, PartKind

Scaled = Callable[[int], int]
"""The width that a width becomes."""


def layout_of(name: str, bytes_scale: float) -> KVLayout:
    """The layout called `name`, one of `LAYOUTS`, with `bytes_scale` (above 0, at most 1) of the bytes, or nearly."""

    def scaled(width: int) -> int:
        return max(1, round(width * bytes_scale))

    return KVLayout(f"emulated-{name}@{bytes_scale:g}", tuple(LAYOUTS[name](scaled)))


def _paper_1t(scaled: Scaled) -> Iterator[Part]:
    """The paper's 1T model, as far as Table 5 tells: 60 layers, KDA to MLA 3:1. 15 MLA layers of 512 + 64 in bfloat16
    are 16.9 KiB a token; 45 KDA layers, four states each, are 174 MiB (60 heads of 128 x 128 in float32, and three
    convolutions of width 3, are ours: they add up to it)."""
    for layer in range(60):
        if layer % 4 == 3:
            yield Part(layer, "latent", PartKind.TOKENS, (1, scaled(576)), "bfloat16", sharded=False)
        else:
            yield from _delta(layer, 60, 128, scaled)


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
