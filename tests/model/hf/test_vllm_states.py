"""States of known models, as they are said to be served, against the shapes that vLLM itself computes for them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.model.hf.load import load_layout

pytestmark = pytest.mark.vllm
PYTHON = os.environ.get("PRFAAS_VLLM_PYTHON", sys.executable)
CALLS: dict[str, str] = {
    "Qwen3.5-397B-A17B": "gated_delta_net_state_shape(1, 16, 64, 128, 128, 4)",
    "Qwen3-Next-80B-A3B": "gated_delta_net_state_shape(1, 16, 32, 128, 128, 4)",
    "Kimi-Linear-48B-A3B": "kda_state_shape(1, 32, 128, conv_kernel_size=4)",
    "Falcon-H1-34B": "mamba2_state_shape(1, 4096, 2, 32, 128, 256, 4)",
    "Nemotron-H-8B": "mamba2_state_shape(1, 8192, 8, 128, 64, 128, 4)",
    "Granite-4.0-H-Small": "mamba2_state_shape(1, 8192, 1, 128, 64, 128, 4)",
    "Jamba-1.5-Mini": "mamba1_state_shape(1, 8192, 16, 4)",
    "LFM2-1.2B": "short_conv_state_shape(1, 2048, 3)",
    "Ring-2.5-1T": "linear_attention_state_shape(64, 1, 128)",
}
"""Known model -> vLLM's call with the sizes of its config."""


def test_numbers_of_one_layers_states() -> None:
    code = (
        "from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as C\nimport json\n"
        f"print(json.dumps([{', '.join(f'C.{call}' for call in CALLS.values())}]))"
    )
    asked = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, cwd="/", check=False)
    if "No module named 'vllm'" in asked.stderr:
        pytest.skip(f"{PYTHON} has no vllm; set PRFAAS_VLLM_PYTHON (`make setup-vllm`)")
    assert asked.returncode == 0, asked.stderr
    for model, shapes in zip(CALLS, json.loads(asked.stdout.splitlines()[-1]), strict=True):
        layout = load_layout(model)
        states = [part for part in layout.parts if part.kind is PartKind.STATE]
        one = [part for part in states if part.layer == states[0].layer]
        convolutions = sum(math.prod(part.shape) for part in one if part.name != "recurrent")
        recurrent = sum(math.prod(part.shape) for part in one if part.name == "recurrent")
        assert [math.prod(shape) for shape in shapes] == [size for size in (convolutions, recurrent) if size], model
