"""Linear attention by the delta rule: GDN (Qwen3-Next, Qwen3.5) and KDA (Kimi Linear, Ling 3), mixed with attention.

It knows their settings and states; the attention layers between are `attention`'s and `mla`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import attention, layers, mla, parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def gated(config: Config, taken: Taken) -> Iterator[Part]:
    """GDN and full attention; every `full_attention_interval`th layer (4) is attention unless `layer_types` says."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.LINEAR))
    if kinds is None:
        period = config.integer("full_attention_interval", default=4)
        kinds = layers.every(config, lambda layer: (layer + 1) % period == 0, layers.FULL, layers.LINEAR)
    for layer, kind in enumerate(kinds):
        yield from attention.full(config, taken, layer) if kind == layers.FULL else _gdn(config, taken, layer)


def kimi(config: Config, taken: Taken) -> Iterator[Part]:
    """KDA and MLA: the layers of `linear_attn_config`, counted from 1, or `layer_types`."""
    inner = config.section("linear_attn_config")
    if inner is None:
        kinds = layers.listed(config, "layer_types", (layers.FULL, layers.LINEAR))
        if kinds is None:
            raise config.missing("linear_attn_config", "a mapping with `full_attn_layers`, or `layer_types`")
        sizes = tuple(
            config.integer(name) for name in ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
        )
    else:
        full = inner.integers("full_attn_layers")
        if full is None:
            raise inner.missing("full_attn_layers", "a list of layers, counted from 1")
        if any(not 1 <= layer <= config.layer_count() for layer in full):
            raise inner.wrong("full_attn_layers", f"layers from 1 to {config.layer_count()}")
        kinds = layers.placed(config, [layer - 1 for layer in full], layers.FULL, layers.LINEAR)
        sizes = tuple(inner.integer(name) for name in ("num_heads", "head_dim", "short_conv_kernel_size"))
    yield from _kda_and_mla(config, taken, kinds, sizes)


def ling3(config: Config, taken: Taken) -> Iterator[Part]:
    """KDA and MLA: the last layer of every `layer_group_size` is MLA, and those of a last, incomplete group (vLLM)."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.LINEAR))
    if kinds is None:
        period, whole = config.integer("layer_group_size"), config.layer_count()
        whole -= whole % period
        kinds = layers.every(
            config, lambda layer: (layer + 1) % period == 0 or layer >= whole, layers.FULL, layers.LINEAR
        )
    sizes = (
        config.integer("linear_num_heads", "num_attention_heads"),
        config.integer("linear_head_dim", "head_dim"),
        config.integer("linear_conv_kernel_dim", "short_conv_kernel_size"),
    )
    yield from _kda_and_mla(config, taken, kinds, sizes)


def _kda_and_mla(config: Config, taken: Taken, kinds: list[str], sizes: tuple[int, ...]) -> Iterator[Part]:
    heads, width, kernel = sizes
    for layer, kind in enumerate(kinds):
        if kind == layers.FULL:
            yield mla.latent(config, taken, layer)
            continue
        yield parts.recurrent(layer, (heads, width, width), taken.recurrent)
        for name in ("conv_q", "conv_k", "conv_v"):
            yield parts.convolution(layer, (heads, width, taken.columns(kernel)), taken.model, name)


def _gdn(config: Config, taken: Taken, layer: int) -> Iterator[Part]:
    k_heads, v_heads, k_width, v_width, kernel = (
        config.integer(f"linear_{name}")
        for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim", "conv_kernel_dim")
    )
    yield parts.recurrent(layer, (v_heads, k_width, v_width), taken.recurrent)
    # Queries, keys and values side by side: no heads to cut them by.
    channels = 2 * k_heads * k_width + v_heads * v_width
    yield parts.convolution(layer, (1, channels, taken.columns(kernel)), taken.model)
