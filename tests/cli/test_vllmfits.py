"""What vLLM, or our connector in it, would refuse for the model at hand: `validate` says it, with its line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from prfaas.cli.fits import misfits
from prfaas.cli.main import cli
from prfaas.config.reader import read_topology

GEMMA = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 64,
    "max_position_embeddings": 4096,
    "dtype": "float32",
}
ROW = 2 * 2 * 32 * 4
"""Bytes of a token in a layer: K and V, two heads of 32, float32."""


def written(tmp_path: Path, engine: str, limits: str, **config: object) -> Path:
    """A file whose nodes have more settings of `engine` (the far one only `connector`), and its model."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(GEMMA | config))
    file = tmp_path / "t.yaml"
    file.write_text(
        f"""model: ./model
clusters:
  home:
    kind: pd
    nodes:
      - {{name: d, role: decode, engine: {{kind: vllm, device: cpu, dtype: float32{engine}}}}}
  far:
    kind: prfaas
    nodes:
      - {{name: p, role: prefill, engine: {{kind: vllm, device: cpu, dtype: float32{engine * ("nixl" in engine)}}}}}
links: [{{from: far, to: home, bandwidth: 1Gbps, rtt: 1ms}}]
limits: {{{limits}}}
"""
    )
    return file


NEEDED = 2 * 63 * ROW + 2 * 1999 * ROW
"""Of 1999 tokens: two layers with their last rows, two with all."""


@pytest.mark.parametrize(
    ("engine", "limits", "said"),
    [
        (
            "",
            f"max_model_len: 2000, landing_buffer: {NEEDED - 1}B",
            f"12: limits.landing_buffer: got {NEEDED - 1}B; expected {NEEDED} bytes or more: KV of a prompt of ",
        ),
        (
            f", kv_memory: {2 * 2000 * ROW - 1}B",
            "max_model_len: 2000",
            f"6: clusters.home.nodes[0].engine.kv_memory: got {2 * 2000 * ROW - 1}B; expected {2 * 2000 * ROW} bytes",
        ),
        (", block_tokens: 48", "", "6: clusters.home.nodes[0].engine.block_tokens: got 48; expected a multiple of 32"),
        ("", "max_model_len: 4097", "12: limits.max_model_len: got 4097; expected at most 4096, which the model was"),
    ],
)
def test_what_does_not_fit(tmp_path: Path, engine: str, limits: str, said: str) -> None:
    file = written(tmp_path, engine, limits)
    done = CliRunner().invoke(cli, ["validate", str(file)])
    assert (done.exit_code, done.output.count("\n")) == (2, 1)
    assert done.output.startswith(f"{file}:{said}"), done.output


@pytest.mark.parametrize(
    ("engine", "limits", "config"),
    [
        ("", f"max_model_len: 2000, landing_buffer: {NEEDED}B", {}),
        (f", kv_memory: {2 * 2000 * ROW}B", "max_model_len: 2000", {}),
        (", connector: nixl", "max_model_len: 2000, landing_buffer: 1KiB", {}),
        (", arguments: [--kv-cache-dtype, fp8]", "max_model_len: 2000, landing_buffer: 1KiB", {}),
        (", arguments: [-tp, '2'], kv_memory: 1MiB", "max_model_len: 2000", {}),
        ("", "landing_buffer: 1KiB", {}),
        ("", "max_model_len: 5000", {"rope_scaling": {"factor": 2.0}}),
        (", block_tokens: 64", "", {}),
    ],
)
def test_what_may(tmp_path: Path, engine: str, limits: str, config: dict[str, object]) -> None:
    topology = read_topology(written(tmp_path, engine, limits, **config))
    assert not list(misfits(topology, tmp_path / "model"))
