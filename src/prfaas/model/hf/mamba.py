"""State-space layers: Mamba-2 (Falcon-H1, Nemotron-H, Granite 4, Bamba, Zamba2) and Mamba-1 (Jamba), with attention.

It knows their settings and states; attention layers are `attention`'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import attention, layers, parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def falcon_h1(config: Config, taken: Taken) -> Iterator[Part]:
    """Every layer has both: attention, and Mamba-2 of `mamba_d_ssm` channels."""
    for layer in range(config.layer_count()):
        yield from attention.full(config, taken, layer)
        yield from _common(config, taken, layer)


def granite(config: Config, taken: Taken) -> Iterator[Part]:
    """Mamba-2 or attention, as `layer_types` says."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.LINEAR))
    kinds = kinds or layers.listed(config, "layers_block_type", (layers.FULL, layers.LINEAR))
    if kinds is None:
        raise config.missing("layer_types", "mamba or attention for each layer")
    yield from _mixed(config, taken, kinds)


def bamba(config: Config, taken: Taken) -> Iterator[Part]:
    """Mamba-2, and attention in the layers of `attn_layer_indices`, counted from 0."""
    indices = config.integers("attn_layer_indices")
    if indices is None:
        raise config.missing("attn_layer_indices", "a list of layers, counted from 0")
    yield from _mixed(config, taken, layers.placed(config, indices, layers.FULL, layers.LINEAR))


def nemotron_h(config: Config, taken: Taken) -> Iterator[Part]:
    """Mamba-2, attention, or an MLP without a cache, as `hybrid_override_pattern` or `layers_block_type` says."""
    kinds = layers.lettered(config, "hybrid_override_pattern")
    kinds = kinds or layers.listed(config, "layers_block_type", (layers.FULL, layers.LINEAR, layers.NONE))
    if kinds is None:
        raise config.missing("hybrid_override_pattern", "a pattern of M * - E, or `layers_block_type`")
    heads, width = config.integer("mamba_num_heads"), config.integer("mamba_head_dim")
    groups, state = config.integer("n_groups", "mamba_n_groups"), config.integer("ssm_state_size")
    kernel = config.integer("conv_kernel", "mamba_d_conv")
    for layer, kind in enumerate(kinds):
        if kind == layers.FULL:
            yield from attention.full(config, taken, layer)
        elif kind == layers.LINEAR:
            yield from _mamba2(taken, layer, heads, width, groups, state, kernel)


def zamba2(config: Config, taken: Taken) -> Iterator[Part]:
    """Mamba-2 in every layer, and in those that `layers_block_type` calls hybrid shared attention, whose heads are
    twice as wide, since it sees the layer's input beside the model's."""
    kinds = layers.listed(config, "layers_block_type", (layers.LINEAR, layers.BOTH))
    if kinds is None:
        raise config.missing("layers_block_type", "mamba or hybrid for each layer")
    hidden, queries = config.integer("hidden_size"), config.integer("num_attention_heads")
    heads = config.integer("n_mamba_heads")
    width = config.integer("mamba_expand") * hidden // heads
    groups, state, kernel = (config.integer(f"mamba_{name}") for name in ("ngroups", "d_state", "d_conv"))
    for layer, kind in enumerate(kinds):
        if kind == layers.BOTH:
            kv_heads, kv_width = config.integer("num_key_value_heads", default=queries), 2 * hidden // queries
            yield from parts.attention(layer, kv_heads, kv_width, kv_width, taken.rows)
        yield from _mamba2(taken, layer, heads, width, groups, state, kernel)


def jamba(config: Config, taken: Taken) -> Iterator[Part]:
    """Mamba-1, and attention in every `attn_layer_period`th layer from `attn_layer_offset` on."""
    period, offset = config.integer("attn_layer_period"), config.integer("attn_layer_offset", least=0)
    channels = config.integer("mamba_expand") * config.integer("hidden_size")
    state, kernel = config.integer("mamba_d_state"), config.integer("mamba_d_conv")
    for layer in range(config.layer_count()):
        if layer % period == offset:
            yield from attention.full(config, taken, layer)
        else:
            yield parts.recurrent(layer, (channels, state), taken.recurrent)
            yield parts.convolution(layer, (1, channels, taken.columns(kernel)), taken.model)


def _mixed(config: Config, taken: Taken, kinds: list[str]) -> Iterator[Part]:
    for layer, kind in enumerate(kinds):
        yield from attention.full(config, taken, layer) if kind == layers.FULL else _common(config, taken, layer)


def _common(config: Config, taken: Taken, layer: int) -> Iterator[Part]:
    """Mamba-2 with the settings called `mamba_*`."""
    heads = config.integer("mamba_n_heads")
    if config.has("mamba_d_ssm"):
        channels = config.integer("mamba_d_ssm")
    else:
        channels = config.integer("mamba_expand") * config.integer("hidden_size")
    if channels % heads:
        raise config.wrong("mamba_n_heads", f"a divisor of Mamba's {channels} channels")
    groups, state, kernel = (config.integer(f"mamba_{name}") for name in ("n_groups", "d_state", "d_conv"))
    yield from _mamba2(taken, layer, heads, channels // heads, groups, state, kernel)


def _mamba2(taken: Taken, layer: int, heads: int, width: int, groups: int, state: int, kernel: int) -> Iterator[Part]:
    yield parts.recurrent(layer, (heads, width, state), taken.recurrent)
    # The inputs, and B and C of each group, side by side: no heads to cut them by.
    channels = heads * width + 2 * groups * state
    yield parts.convolution(layer, (1, channels, taken.columns(kernel)), taken.model)
