"""A checkpoint is judged by its headers: what an engine would refuse, and too many copies, before any is started."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from prfaas.core.errors import ConfigError
from prfaas.engine.transformers import check as checker
from prfaas.engine.transformers.check import check, check_devices, host_bytes
from prfaas.engine.transformers.checkpoint import open_checkpoint
from prfaas.engine.transformers.tinykinds import TINY_KINDS

pytestmark = pytest.mark.slow  # real models

CPU = [("float32", "cpu")]


@pytest.fixture
def copy(tiny: Any, tmp_path: Path) -> Path:
    """A tiny model's directory to spoil."""
    return Path(shutil.copytree(tiny("tiny-qwen3"), tmp_path / "model"))


def refusal(directory: Path, engines: list[tuple[str, str]] = CPU) -> str:
    with pytest.raises(ConfigError) as caught:
        check(directory, engines)
    words = str(caught.value)
    assert "\n" not in words
    assert len(words) < 1000
    return words


def configure(directory: Path, **fields: Any) -> None:
    config = json.loads((directory / "config.json").read_text()) | fields
    (directory / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("kind", list(TINY_KINDS))
def test_what_can_be_served(tiny: Any, kind: str) -> None:
    check(tiny(kind), [("float32", "cpu"), ("bfloat16", "cpu")])


def test_files(copy: Path) -> None:
    weights = copy / "model.safetensors"
    whole = weights.read_bytes()
    for broken in (whole[:-1], whole[: len(whole) // 2], whole[:5], b"", b"\xff" * 100, whole + b"x"):
        weights.write_bytes(broken)
        assert "model.safetensors: not a whole safetensors file" in refusal(copy)
    weights.unlink()
    assert "weights file not found" in refusal(copy)
    weights.write_bytes(whole)
    for config, words in (("{", "not JSON"), ("[]", "expected a JSON object"), ("{}", "model_type is None")):
        (copy / "config.json").write_text(config)
        assert words in refusal(copy)


def test_tensors_that_are_missing_or_of_other_shapes(copy: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(copy / "model.safetensors")
    taken = tensors.pop("model.layers.1.mlp.up_proj.weight")
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    assert "missing keys: model.layers.1.mlp.up_proj.weight (1 in all)" in refusal(copy)
    tensors["model.layers.1.mlp.up_proj.weight"] = taken[:, :5].contiguous()
    save_file(tensors, copy / "model.safetensors", {"format": "pt"})
    assert "mismatched keys: model.layers.1.mlp.up_proj.weight [256, 5] instead of [256, 128] (1 in" in refusal(copy)


@pytest.mark.parametrize("family", ["abacus", None, 4, ["qwen3"], "", "../x"])
def test_families_that_nobody_knows(copy: Path, family: Any) -> None:
    configure(copy, model_type=family)
    words = refusal(copy)
    assert f"model_type is {family!r}, which transformers" in words
    assert "kimi_linear" in words
    assert "gemma3" in words


@pytest.mark.parametrize(
    ("family", "words"), [("t5", "not a causal language model"), ("bert", "its decoder layers do not stand")]
)
def test_families_of_another_kind(copy: Path, family: str, words: str) -> None:
    import transformers

    small = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.AutoConfig.for_model(family, vocab_size=259, **small if family == "bert" else {})
    config.save_pretrained(copy)
    if family == "bert":
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(copy)
    assert refusal(copy).startswith(f"{family}: {words}")


def test_values_that_no_model_has(copy: Path) -> None:
    for fields in (
        {"num_hidden_layers": -3},
        {"hidden_size": "wide"},
        {"num_attention_heads": 0},
        {"vocab_size": None},
    ):
        shutil.copy(copy / "config.json", copy / "kept.json")
        configure(copy, **fields)
        refusal(copy)
        shutil.move(copy / "kept.json", copy / "config.json")
    check(copy, CPU)


def test_a_checkpoint_that_brings_its_own_code(copy: Path) -> None:
    """It is never run, nor is anybody asked whether it may."""
    (copy / "modeling_x.py").write_text("raise SystemExit('it was run')")
    configure(
        copy, model_type="x_model", auto_map={"AutoConfig": "modeling_x.C", "AutoModelForCausalLM": "modeling_x.M"}
    )
    assert "does not know" in refusal(copy)
    configure(copy, model_type="qwen3")
    check(copy, CPU)  # transformers' own Qwen3


def test_a_cache_that_cannot_be_moved(tmp_path: Path) -> None:
    import torch
    import transformers

    config = transformers.AutoConfig.for_model(
        "deepseek_v32", vocab_size=64, hidden_size=32, intermediate_size=32, moe_intermediate_size=16,
        num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, n_routed_experts=4, num_experts_per_tok=2,
        n_group=1, topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_rope_head_dim=16, v_head_dim=16,
        qk_nope_head_dim=16, index_n_heads=2, index_head_dim=32, index_topk=4, first_k_dense_replace=1,
        n_shared_experts=1, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path / "model")
    words = refusal(tmp_path / "model")
    assert words.startswith(
        "deepseek_v32: layer 0 keeps its cache as DynamicIndexedLayer, which cannot be moved; these can"
    )
    assert "kimi_linear" in words


def test_memory_for_all_engines_of_this_machine(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tiny("tiny-qwen3")
    found = open_checkpoint(directory)
    assert found.dtypes == {"F32"}
    one = found.weights * 4
    assert host_bytes(found, ["float32"] * 3) == one, "they map the file"
    assert host_bytes(found, ["bfloat16"] * 3) == 3 * one // 2
    assert host_bytes(found, ["float32", "bfloat16", "float16"]) == 2 * one
    monkeypatch.setattr(checker, "free_host_bytes", lambda: one)
    check(directory, CPU * 3)
    words = refusal(directory, [*CPU, ("bfloat16", "cpu")])
    assert "in 2 engines" in words
    assert "GiB of host memory is free" in words


def test_devices(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    directory = tiny("tiny-qwen3")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device 'cuda': no CUDA device here"):
            check_devices(directory, [*CPU, ("bfloat16", "cuda")])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 << 20, 80 << 30))
    check_devices(directory, [("bfloat16", "cuda:0"), ("bfloat16", "cuda:1")])
    with pytest.raises(ConfigError, match="of cuda:1 memory is free"):
        check_devices(directory, [("bfloat16", "cuda:0"), *[("float32", "cuda:1")] * 2])
