"""The architectures of the built-in tiny models, by name.

It knows transformers' config fields of a few families, small enough for a laptop's test run; it does not know
weights, files or tokenizers. A new kind is one entry here, if its cache layers are among those that `layout` can
move.
"""

from __future__ import annotations

from typing import Any

VOCAB_SIZE = 259
BOS_ID, EOS_ID, PAD_ID = 256, 257, 258

_COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
_GQA: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
_ROPE: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}}
_THREE_TO_ONE = ["linear_attention", "linear_attention", "linear_attention", "full_attention"]

TINY_KINDS: dict[str, dict[str, Any]] = {
    # Kimi Linear: KDA, KDA, KDA, MLA; the first layer's MLP is dense, the others are mixtures of experts.
    "tiny-hybrid": _COMMON
    | {
        "model_type": "kimi_linear",
        "layer_types": _THREE_TO_ONE,
        "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 128,
        "qk_rope_head_dim": 32,
        "qk_nope_head_dim": 32,
        "v_head_dim": 32,
        "linear_head_dim": 32,
        "linear_num_heads": 4,
        "linear_conv_kernel_dim": 4,
        "moe_intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
    },
    "tiny-qwen3": _COMMON | _GQA | _ROPE | {"model_type": "qwen3"},
    "tiny-qwen3-next": _COMMON
    | _GQA
    | {
        "model_type": "qwen3_next",
        "layer_types": _THREE_TO_ONE,
        "mlp_only_layers": [],
        "rope_parameters": _ROPE["rope_parameters"] | {"partial_rotary_factor": 0.25},
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
    "tiny-gemma3": _COMMON
    | _GQA
    | {
        "model_type": "gemma3_text",
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 96,
        "query_pre_attn_scalar": 32,
    },
    "tiny-falcon-h1": _COMMON
    | _GQA
    | _ROPE
    | {
        "model_type": "falcon_h1",
        "mamba_d_ssm": 128,
        "mamba_n_heads": 4,
        "mamba_d_head": 32,
        "mamba_n_groups": 1,
        "mamba_d_state": 32,
        "mamba_d_conv": 4,
        "mamba_chunk_size": 64,
        "mamba_rms_norm": False,
    },
}
"""Kind -> config fields; `model_type` is transformers' name of the family."""
