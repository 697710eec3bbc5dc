"""What a transformers cache is made of, asked of the cache itself, layer by layer.

It knows the cache layer classes of transformers 5.24 and where each keeps its tensors (batch of one). It does not
know models: a family is movable when all its layers are, and a layer class that is not listed here is refused by
name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import cache_utils as hf

from prfaas.core.cache.layout import DTYPE_BYTES, Part, PartKind
from prfaas.core.errors import ConfigError

_TOKENS = (hf.DynamicLayer, hf.LinearAttentionAndFullAttentionLayer)
_WINDOW = (hf.DynamicSlidingWindowLayer, hf.LinearAttentionAndSlidingWindowAttentionLayer)
_STATES = (
    hf.LinearAttentionLayer,
    hf.LinearAttentionAndFullAttentionLayer,
    hf.LinearAttentionAndSlidingWindowAttentionLayer,
)
_MOVABLE = {hf.DummyLayer, *_TOKENS, *_WINDOW, *_STATES}

MOVABLE_WORDS = (
    "full attention, MLA, sliding-window attention, linear attention (GDN, KDA, Mamba, short convolution), and layers"
    " with both, as in llama, qwen3, gemma3, gpt_oss, mimo_v2_flash, qwen3_next, qwen3_5, kimi_linear, bailing_hybrid,"
    " falcon_h1, granitemoehybrid, jamba, lfm2, mamba2, nemotron_h, olmo_hybrid, zamba2"
)
"""For refusals: what can be moved."""


def require_movable(cache: Any, family: str) -> None:
    """Raises ConfigError when a layer of `cache` is of a class whose tensors are not known here."""
    for index, layer in enumerate(cache.layers):
        if type(layer) not in _MOVABLE:  # a subclass may keep more than its base
            what = f"layer {index} keeps its cache as {type(layer).__name__}"
        elif type(layer) in _WINDOW and layer.sliding_window < 2:
            what = f"layer {index} has a sliding window of {layer.sliding_window}"
        else:
            continue
        raise ConfigError(f"{family}: {what}, which cannot be moved; these can: {MOVABLE_WORDS}")


def parts_of(cache: Any) -> tuple[Part, ...]:
    """The parts of `cache`, which has seen at least one token. Layers without a cache have none."""
    return tuple(part for index, layer in enumerate(cache.layers) for part in _parts_of_layer(index, layer))


def dtype_name(dtype: Any) -> str:
    """`torch.bfloat16` -> "bfloat16"."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: str) -> Any:
    """The torch dtype of a part."""
    return getattr(torch, name)


def tensor_of(layer: Any, name: str) -> Any:
    """The tensor behind part `name` of a cache layer.

    (1, heads, tokens, width) for "k" and "v", (1, *shape) for a recurrent state, the part's shape for a convolution's.
    """
    if name == "k":
        return layer.keys
    if name == "v":
        return layer.values
    kind, index = name.split(".")
    return (layer.conv_states if kind == "conv" else layer.recurrent_states)[int(index)]


def state_name(kind: str, index: int) -> str:
    """The part name of a layer's state: `conv.0`, `recurrent.0`, and so on where a layer has several."""
    return f"{kind}.{index}"


def _parts_of_layer(index: int, layer: Any) -> Iterator[Part]:
    if type(layer) in (*_TOKENS, *_WINDOW) and layer.keys is not None:
        windowed = type(layer) in _WINDOW
        kind = PartKind.WINDOW if windowed else PartKind.TOKENS
        window = layer.sliding_window - 1 if windowed else 0  # the next token is the window's last one
        for name in ("k", "v"):
            _, heads, _, width = tensor_of(layer, name).shape
            # One head is replicated under tensor parallelism, whether MLA's latent or a single KV head.
            yield _part(index, name, kind, (heads, width), tensor_of(layer, name), window=window, sharded=heads > 1)
    if type(layer) in _STATES:
        for state in range(layer.number_of_states):
            if layer.is_conv_states_initialized[state]:
                tensor = layer.conv_states[state]
                # Channels of several projections side by side: no heads to cut it by.
                yield _part(index, state_name("conv", state), PartKind.STATE, (1, *tensor.shape[1:]), tensor)
            if layer.is_recurrent_states_initialized[state]:
                tensor = layer.recurrent_states[state]
                yield _part(index, state_name("recurrent", state), PartKind.STATE, tuple(tensor.shape[1:]), tensor)


def _part(
    layer: int, name: str, kind: PartKind, shape: tuple[int, ...], tensor: Any, *, window: int = 0, sharded: bool = True
) -> Part:
    if dtype_name(tensor.dtype) not in DTYPE_BYTES:
        raise ConfigError(f"layer {layer}: {name} is {tensor.dtype}, expected one of {', '.join(DTYPE_BYTES)}")
    return Part(layer, name, kind, tuple(int(size) for size in shape), dtype_name(tensor.dtype), window, sharded)
