"""Tiny random models whose answers depend on the whole prompt: `python -m tests.vllm.tiny KIND DIRECTORY`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COMMON: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "max_position_embeddings": 1 << 17,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "rope_theta": 1e6,
    "attention_bias": False,
}
MAMBA: dict[str, Any] = {
    "mamba_d_ssm": 512,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_n_groups": 1,
    "mamba_d_state": 64,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 128,
    "mamba_conv_bias": True,
    "mamba_proj_bias": False,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3": {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"},
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 256,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "query_pre_attn_scalar": 64,
    },
    "falcon_h1": {
        "architectures": ["FalconH1ForCausalLM"],
        "model_type": "falcon_h1",
        "hidden_act": "silu",
        "mamba_rms_norm": False,
        "mamba_norm_before_gate": True,
        "mamba_use_mlp": True,
        **MAMBA,
    },
    "qwen3_next": {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_act": "silu",
        "shared_expert_intermediate_size": 128,
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "mlp_only_layers": [],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "partial_rotary_factor": 0.25,
    },
}


def make(kind: str, directory: Path) -> None:
    """Config, weights and a byte tokenizer. GDN on CPUs demands bfloat16."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM

    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**COMMON, **MODELS[kind]}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory), dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "conv" in name:
                weight.normal_(0, 0.5)
            elif weight.dim() >= 2:
                weight.normal_(0, 1.0 if "embed" in name else 1.6 / weight.shape[-1] ** 0.5)
    model.to(torch.bfloat16 if kind == "qwen3_next" else torch.float32).save_pretrained(directory)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|bos|>", "<|eos|>", "<|pad|>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
