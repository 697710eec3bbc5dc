"""Multi-head latent attention: one compressed row a token and layer, shared by all heads.

It knows the settings of the DeepSeek lineage; mixes of MLA with other layers are other files'.
"""

from __future__ import annotations

from collections.abc import Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import parts
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken


def latent(config: Config, taken: Taken, layer: int) -> Part:
    """One layer's latent: `kv_lora_rank` numbers and the rotary key's `qk_rope_head_dim`."""
    width = config.integer("kv_lora_rank") + config.integer("qk_rope_head_dim")
    return parts.latent(layer, width, taken.rows)


def uniform(config: Config, taken: Taken) -> Iterator[Part]:
    """All layers MLA: DeepSeek-V2 and V3, Kimi K2."""
    for layer in range(config.layer_count()):
        yield latent(config, taken, layer)
