"""Short convolutions between attention layers: LFM2.

It knows their settings; their whole state is the convolution's last inputs.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import attention, layers, parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def lfm2(config: Config, taken: Taken) -> Iterator[Part]:
    """Attention in the layers that `layer_types` or `full_attn_idxs` (from 0) says, convolutions in the others."""
    kinds = layers.listed(config, "layer_types", (layers.FULL, layers.CONV))
    if kinds is None:
        indices = config.integers("full_attn_idxs")
        if indices is None:
            raise config.missing("full_attn_idxs", "a list of layers, counted from 0, or `layer_types`")
        kinds = layers.placed(config, indices, layers.FULL, layers.CONV)
    channels, kernel = config.integer("hidden_size"), config.integer("conv_L_cache")
    for layer, kind in enumerate(kinds):
        if kind == layers.FULL:
            yield from attention.full(config, taken, layer)
        else:
            yield parts.convolution(layer, (1, channels, taken.columns(kernel)), taken.model)
