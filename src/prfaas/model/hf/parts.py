"""The parts that layers are made of: attention rows, latents, convolution and recurrent states.

It knows names, shapes and what is split by heads; it does not know families or settings.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part, PartKind


def attention(
    layer: int, heads: int, k_width: int, v_width: int, dtype: str, rows: int | None = None
) -> Iterator[Part]:
    """Keys and values of `heads` KV heads; `rows`: of how many tokens they are kept, None for all."""
    kind = PartKind.TOKENS if rows is None else PartKind.WINDOW
    for name, width in (("k", k_width), ("v", v_width)):
        # One head is replicated under tensor parallelism.
        yield Part(layer, name, kind, (heads, width), dtype, rows or 0, sharded=heads > 1)


def latent(layer: int, width: int, dtype: str) -> Part:
    """MLA's compressed row: latent and rotary key together, the same on every rank."""
    return Part(layer, "latent", PartKind.TOKENS, (1, width), dtype, sharded=False)


def recurrent(layer: int, shape: tuple[int, ...], dtype: str) -> Part:
    """A recurrent state, heads first."""
    return Part(layer, "recurrent", PartKind.STATE, shape, dtype)


def convolution(layer: int, shape: tuple[int, ...], dtype: str, name: str = "conv") -> Part:
    """The last inputs of a causal convolution: (heads or 1, channels, columns)."""
    return Part(layer, name, PartKind.STATE, shape, dtype)
