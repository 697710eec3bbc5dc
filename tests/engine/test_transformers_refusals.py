"""What cannot be served is refused before serving, in words that say what is wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prfaas.core.errors import ConfigError, InvariantError
from prfaas.engine.transformers import checkpoint
from prfaas.engine.transformers.engine import TransformersEngine
from prfaas.testing.gather import gather


@pytest.fixture
def copy(tiny: Any, tmp_path: Path) -> Path:
    """A tiny model's directory to spoil."""
    return Path(shutil.copytree(tiny("tiny-qwen3"), tmp_path / "model"))


async def refusal(directory: Path, **options: Any) -> str:
    try:
        engine = TransformersEngine(directory, **({"kv_blocks": 16} | options))
        try:
            await engine.start()
        finally:
            await engine.close()
    except ConfigError as error:
        return str(error)
    pytest.fail("it was not refused")


async def test_no_directory(tmp_path: Path) -> None:
    assert "nowhere: model directory not found" in await refusal(tmp_path / "nowhere")


async def test_no_config(copy: Path) -> None:
    (copy / "config.json").unlink()
    assert "config.json: No such file" in await refusal(copy)


async def test_config_that_is_no_config(copy: Path) -> None:
    (copy / "config.json").write_text("{")
    assert "config.json: not JSON" in await refusal(copy)
    (copy / "config.json").write_text("[]")
    assert "expected a JSON object" in await refusal(copy)


async def test_unknown_family(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"model_type": "abacus"}))
    assert "abacus" in await refusal(copy)


async def test_broken_weights(copy: Path) -> None:
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1000])
    assert "model.safetensors: not a whole safetensors file" in await refusal(copy)
    weights.write_bytes(b"\xff" * 100)
    assert "not a whole safetensors file" in await refusal(copy)
    weights.unlink()
    assert "weights file not found" in await refusal(copy)


async def test_missing_tensors_are_not_made_up(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    assert "missing keys: model.layers.1.mlp.up_proj.weight (1 in all)" in await refusal(copy)


async def test_index_that_leaves_the_directory(copy: Path) -> None:
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../other.safetensors"}}))
    assert "not a plain file name" in await refusal(copy)


async def test_larger_than_memory(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from prfaas.engine.transformers import loaded

    monkeypatch.setattr(loaded, "free_host_bytes", lambda: 1 << 20)
    assert "GiB of host memory is free" in await refusal(copy)


async def test_a_cache_that_cannot_be_moved(tmp_path: Path) -> None:
    """DeepSeek V3.2 keeps indexer keys beside keys and values."""
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(
        "deepseek_v32", vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=16, v_head_dim=16,
        qk_nope_head_dim=16, index_n_heads=2, index_head_dim=32, index_topk=4, first_k_dense_replace=1,
        n_shared_experts=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(tmp_path / "model")
    words = await refusal(tmp_path / "model")
    assert words.startswith("deepseek_v32: layer 0 keeps its cache as DynamicIndexedLayer, which cannot be moved")
    assert "kimi_linear" in words
    assert "gemma3" in words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"chunk_tokens": 0}, "chunk_tokens is 0: expected 1 or more"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"dtype": "float64"}, "dtype 'float64': expected one of auto"),
        ({"device": "tpu"}, "device 'tpu': expected cpu or cuda"),
        ({"max_model_len": 1025}, "16 KV blocks hold 1024 tokens"),
        ({"max_model_len": 1 << 20}, "was made for 131072 tokens"),
    ],
)
async def test_values(tiny: Any, options: dict[str, Any], words: str) -> None:
    assert words in await refusal(tiny("tiny-qwen3"), **options)


async def test_limits_and_revision(engine: Any, copy: Path) -> None:
    one = await engine("tiny-qwen3", kv_blocks=10, max_sequences=2)
    assert (one.limits.max_model_len, one.limits.max_sequences, one.limits.vocab_size) == (640, 2, 259)
    revision = checkpoint.open_checkpoint(copy).revision()
    assert revision == one.layout.revision
    weights = copy / "model.safetensors"
    raw = bytearray(weights.read_bytes())
    raw[-1] ^= 1
    weights.write_bytes(raw)
    assert checkpoint.open_checkpoint(copy).revision() != revision


async def test_a_dtype_changes_the_layout(engine: Any, answer: Any) -> None:
    both = await engine("tiny-qwen3-next", dtype="bfloat16")
    assert {part.dtype for part in both.layout.parts} == {"bfloat16", "float32"}  # the recurrent state stays exact
    tokens = list(range(200))
    assert len(await answer(both, [*tokens, 1], (await gather(both, tokens)).landed)) == 8


async def test_used_before_start(tiny: Any) -> None:
    engine = TransformersEngine(tiny("tiny-qwen3"), kv_blocks=16)
    with pytest.raises(InvariantError, match="not started"):
        _ = engine.layout
    await engine.close()


def test_free_memory_is_a_number() -> None:
    assert checkpoint.free_host_bytes() > 1 << 20
