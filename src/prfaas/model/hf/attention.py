"""Families whose layers are all attention with keys and values: full, or over a sliding window.

It knows the settings of GQA and MHA families; MLA is `mla`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import layers, parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def heads_of(config: Config) -> tuple[int, int]:
    """KV heads and their width. Without `num_key_value_heads` every head has its own; without a width they share the
    hidden size."""
    heads = config.integer("num_key_value_heads", "num_attention_heads")
    if config.has("head_dim") or config.has("attention_head_dim"):
        return heads, config.integer("head_dim", "attention_head_dim")
    hidden, queries = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden % queries:
        raise config.wrong("hidden_size", f"a multiple of `num_attention_heads`, {queries}, or a `head_dim`")
    return heads, hidden // queries


def full(config: Config, taken: Taken, layer: int) -> Iterator[Part]:
    """One layer of full attention."""
    heads, width = heads_of(config)
    yield from parts.attention(layer, heads, width, width, taken.rows)


def uniform(config: Config, taken: Taken) -> Iterator[Part]:
    """All layers alike (Llama, MiniMax-M2), or as `layer_types` says, or all over one window (Mistral)."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.WINDOW))
    if kinds is None:
        windowed = config.has("sliding_window")
        kinds = layers.every(config, lambda _: windowed, layers.WINDOW, layers.FULL)
    yield from _mixed(config, taken, kinds)


def qwen(config: Config, taken: Taken) -> Iterator[Part]:
    """Full attention, unless `use_sliding_window` is on: then the layers from `max_window_layers` on are windowed."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.WINDOW))
    if kinds is None:
        first = config.integer("max_window_layers") if config.flag("use_sliding_window") else config.layer_count()
        kinds = layers.every(config, lambda layer: layer >= first, layers.WINDOW, layers.FULL)
    yield from _mixed(config, taken, kinds)


def gemma3(config: Config, taken: Taken) -> Iterator[Part]:
    """Five windowed layers, then a full one; `sliding_window_pattern` may say another period."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.WINDOW))
    if kinds is None:
        period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
        kinds = layers.every(config, lambda layer: (layer + 1) % period == 0, layers.FULL, layers.WINDOW)
    yield from _mixed(config, taken, kinds)


def gpt_oss(config: Config, taken: Taken) -> Iterator[Part]:
    """Windowed and full layers in turn, the first windowed."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.WINDOW))
    if kinds is None:
        kinds = layers.every(config, lambda layer: layer % 2 == 1, layers.FULL, layers.WINDOW)
    yield from _mixed(config, taken, kinds)


def mimo(config: Config, taken: Taken) -> Iterator[Part]:
    """MiMo-V2-Flash: keys wider than values, and windowed layers with heads of their own.

    `sliding_window_size` does not count the token itself, as `sliding_window` elsewhere does (SGLang, transformers).
    Without `swa_*` settings the windowed layers have twice the KV heads (transformers).
    """
    kinds = layers.coded(config, "hybrid_layer_pattern", layers.FULL, layers.WINDOW)
    if kinds is None:
        kinds = layers.listed(config, "layer_types", (layers.FULL, layers.WINDOW))
    if kinds is None:
        raise config.missing("hybrid_layer_pattern", "0 (full) or 1 (window) for each layer")
    heads, k_width, v_width = (config.integer(name) for name in ("num_key_value_heads", "head_dim", "v_head_dim"))
    rows = config.integer("sliding_window_size") if config.has("sliding_window_size") else _rows(config)
    near = (
        config.integer("swa_num_key_value_heads", default=2 * heads),
        config.integer("swa_head_dim", default=k_width),
        config.integer("swa_v_head_dim", default=v_width),
    )
    for layer, kind in enumerate(kinds):
        if kind == layers.FULL:
            yield from parts.attention(layer, heads, k_width, v_width, taken.rows)
        else:
            yield from parts.attention(layer, *near, taken.rows, rows)


def _mixed(config: Config, taken: Taken, kinds: list[str]) -> Iterator[Part]:
    heads, width = heads_of(config)
    rows = _rows(config) if layers.WINDOW in kinds else 0
    for layer, kind in enumerate(kinds):
        yield from parts.attention(layer, heads, width, width, taken.rows, rows if kind == layers.WINDOW else None)


def _rows(config: Config) -> int:
    """The rows that a window keeps: the next token is its last one."""
    window = config.integer("sliding_window")
    if window < 2:
        raise config.wrong("sliding_window", "a window of 2 tokens or more")
    return window - 1
