"""Lightning attention, a linear attention without convolutions: MiniMax-Text-01 (beside GQA), Ring 2.5 (beside MLA).

It knows their settings; the state of a layer is one (heads, width, width) matrix a head.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import attention, layers, mla, parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def minimax(config: Config, taken: Taken) -> Iterator[Part]:
    """Lightning and full attention as `attn_type_list` (1 is full) or `layer_types` says."""
    kinds = layers.coded(config, "attn_type_list", layers.LINEAR, layers.FULL)
    if kinds is None:
        kinds = layers.listed(config, "layer_types", (layers.FULL, layers.LINEAR))
    if kinds is None:
        raise config.missing("attn_type_list", "0 (Lightning) or 1 (full) for each layer, or `layer_types`")
    for layer, kind in enumerate(kinds):
        yield from attention.full(config, taken, layer) if kind == layers.FULL else _state(config, taken, layer)


def ling25(config: Config, taken: Taken) -> Iterator[Part]:
    """Lightning and MLA: the last layer of every `layer_group_size` is MLA."""
    period = config.integer("layer_group_size")
    for layer in range(config.layer_count()):
        if (layer + 1) % period == 0:
            yield mla.latent(config, taken, layer)
        else:
            yield from _state(config, taken, layer)


def _state(config: Config, taken: Taken, layer: int) -> Iterator[Part]:
    _, width = attention.heads_of(config)
    yield parts.recurrent(layer, (config.integer("num_attention_heads"), width, width), taken.lightning)
