"""Configs of tiny models, one for each family and way to write it, as their config.json says it."""

from __future__ import annotations

from typing import Any

WINDOW = 9
_BASE: dict[str, Any] = {
    "dtype": "bfloat16",
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "max_position_embeddings": 512,
}
_FEW: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
_GQA = _FEW | {"head_dim": 24}
_MHA: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
_MLA = _MHA | {"kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
_LOCAL: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
_ROUTED = _EXPERTS | {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
_SHARED = _EXPERTS | {"shared_expert_intermediate_size": 32}
_GDN: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "linear_conv_kernel_dim": 4,
}
_MAMBA2: dict[str, Any] = {
    "mamba_n_heads": 4,
    "mamba_d_head": 32,
    "mamba_n_groups": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 8,
}
_KDA_LAYERS = {"full_attn_layers": [2, 4], "kda_layers": [1, 3]}
_VISION: dict[str, Any] = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}


def _without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in _BASE.items() if name not in names}


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": _BASE | _FEW,
    "llama, in float32": _BASE | _FEW | {"model_type": "llama", "dtype": "float32"},
    "mistral, all windowed": _BASE | _FEW | {"model_type": "mistral", "sliding_window": WINDOW},
    "mixtral": _BASE | _FEW | _LOCAL | {"sliding_window": None},
    "minimax_m2": _BASE | _GQA | _LOCAL | {"rotary_dim": 12},
    "glm4_moe": _BASE | _GQA | _ROUTED,
    "qwen2, half windowed": _BASE
    | _FEW
    | {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    "qwen2_moe": _BASE | _FEW | _SHARED,
    "qwen3": _BASE | _GQA,
    "qwen3_moe": _BASE | _GQA | _EXPERTS,
    "gemma3_text": _BASE | _GQA | {"sliding_window": WINDOW, "sliding_window_pattern": 3},
    "gemma3, nested": {
        "model_type": "gemma3",
        "dtype": "bfloat16",
        "text_config": _BASE | _GQA | {"model_type": "gemma3_text", "sliding_window": WINDOW},
        "vision_config": _VISION,
        "mm_tokens_per_image": 4,
    },
    "gpt_oss": _BASE | _GQA | _LOCAL | {"sliding_window": WINDOW},
    "mimo_v2_flash": _BASE
    | _ROUTED
    | {
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 24,
        "v_head_dim": 16,
        "sliding_window_size": WINDOW,
        "layer_types": ["full_attention", "sliding_attention", "sliding_attention", "full_attention"],
    },
    "deepseek_v2": _BASE | _MLA | _ROUTED,
    "deepseek_v3": _BASE | _MLA | _ROUTED,
    "qwen3_next": _BASE | _GQA | _GDN | _SHARED,
    "qwen3_5_text": _BASE | _GQA | _GDN,
    "qwen3_5_moe_text": _BASE | _GQA | _GDN | _SHARED | {"full_attention_interval": 2},
    "qwen3_5, nested": {
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "text_config": _BASE | _GQA | _GDN | {"model_type": "qwen3_5_text"},
    },
    "qwen3_5_moe, nested": {
        "model_type": "qwen3_5_moe",
        "dtype": "bfloat16",
        "text_config": _BASE | _GQA | _GDN | _SHARED | {"model_type": "qwen3_5_moe_text"},
    },
    "olmo_hybrid": _BASE | _MHA | _GDN | {"linear_num_key_heads": 4},
    "kimi_linear": _BASE
    | _MLA
    | _EXPERTS
    | {"linear_attn_config": _KDA_LAYERS | {"head_dim": 16, "num_heads": 3, "short_conv_kernel_size": 4}},
    "bailing_hybrid": _BASE | _MLA | _ROUTED | {"head_dim": 16, "layer_group_size": 2, "short_conv_kernel_size": 3},
    "minimax": _BASE
    | _GQA
    | _LOCAL
    | {"layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"]},
    "falcon_h1": _BASE | _GQA | _MAMBA2 | {"mamba_d_ssm": 96, "mamba_d_head": 24},
    "nemotron_h": _without("num_hidden_layers")
    | _GQA
    | {
        "hybrid_override_pattern": "M-M*",
        "ssm_state_size": 16,
        "mamba_num_heads": 4,
        "mamba_head_dim": 32,
        "n_groups": 2,
        "conv_kernel": 4,
        "expand": 2,
        "chunk_size": 8,
    },
    "granitemoehybrid": _BASE
    | _FEW
    | _MAMBA2
    | _LOCAL
    | {"layer_types": ["mamba", "mamba", "attention", "mamba"], "shared_intermediate_size": 32},
    "bamba": _BASE | _FEW | _MAMBA2 | {"attn_layer_indices": [2]},
    "zamba2": _BASE
    | _MHA
    | {
        "layers_block_type": ["mamba", "mamba", "hybrid", "mamba"],
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_ngroups": 2,
        "n_mamba_heads": 4,
        "chunk_size": 8,
        "num_mem_blocks": 1,
    },
    "jamba": _BASE
    | _FEW
    | {
        "attn_layer_period": 4,
        "attn_layer_offset": 2,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "use_mamba_kernels": False,
    },
    "lfm2": _BASE | _FEW | {"full_attn_idxs": [2], "conv_L_cache": 3},
    "lfm2_moe": _BASE
    | _FEW
    | _EXPERTS
    | {"layer_types": ["conv", "full_attention", "conv", "conv"], "conv_L_cache": 3, "num_dense_layers": 1},
}
"""What it is -> its config.json; where `model_type` is left out, it is the name."""


def config_of(name: str) -> dict[str, Any]:
    """The config.json of family `name`."""
    return {"model_type": name} | FAMILIES[name]
