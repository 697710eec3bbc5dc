"""Model families by `model_type`: which file says what their caches are made of.

It knows names; it does not know settings. A family that is not listed is refused by name, since a guess would be a
wrong number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prfaas.core.cache.layout import Part
from prfaas.model.hf import attention, delta, lightning, mamba, mla, shortconv
from prfaas.model.hf.config import Config
from prfaas.model.hf.taken import Taken

Family = Callable[[Config, Taken], Iterator[Part]]


def _bailing(config: Config, taken: Taken) -> Iterator[Part]:
    """Ling and Ring 2.5 have Lightning attention, Ling 3 has KDA, under one `model_type`; only KDA has convolutions."""
    kda = config.has("short_conv_kernel_size") or config.has("linear_conv_kernel_dim")
    yield from (delta.ling3 if kda else lightning.ling25)(config, taken)


FAMILIES: dict[str, Family] = {
    "llama": attention.uniform,
    "mistral": attention.uniform,
    "mixtral": attention.uniform,
    "minimax_m2": attention.uniform,
    "glm4_moe": attention.uniform,
    "qwen2": attention.qwen,
    "qwen2_moe": attention.qwen,
    "qwen3": attention.qwen,
    "qwen3_moe": attention.qwen,
    "qwen3_vl_text": attention.qwen,
    "qwen3_vl_moe_text": attention.qwen,
    "gemma3_text": attention.gemma3,
    "gemma3": attention.gemma3,
    "gpt_oss": attention.gpt_oss,
    "mimo_v2_flash": attention.mimo,
    "deepseek_v2": mla.uniform,
    "deepseek_v3": mla.uniform,
    "kimi_k2": mla.uniform,
    "qwen3_next": delta.gated,
    "qwen3_5": delta.gated,
    "qwen3_5_text": delta.gated,
    "qwen3_5_moe": delta.gated,
    "qwen3_5_moe_text": delta.gated,
    "olmo_hybrid": delta.gated,
    "kimi_linear": delta.kimi,
    "bailing_hybrid": _bailing,
    "minimax": lightning.minimax,
    "minimax_text_01": lightning.minimax,
    "falcon_h1": mamba.falcon_h1,
    "nemotron_h": mamba.nemotron_h,
    "granitemoehybrid": mamba.granite,
    "bamba": mamba.bamba,
    "zamba2": mamba.zamba2,
    "jamba": mamba.jamba,
    "lfm2": shortconv.lfm2,
    "lfm2_moe": shortconv.lfm2,
}
"""`model_type` -> its layout. Of a nested config, the type of the language model counts."""


def family_of(config: Config) -> Family:
    """The family of `config`. Raises ConfigError with the known ones."""
    name = config.text("model_type")
    expected = f"one of {', '.join(sorted(FAMILIES))}"
    if not name:
        raise config.missing("model_type", expected)
    if name not in FAMILIES:
        raise config.wrong("model_type", expected)
    return FAMILIES[name]
