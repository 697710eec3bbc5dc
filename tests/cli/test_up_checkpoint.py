"""`prfaas up --model DIRECTORY` says what is wrong with it, in one line, and starts nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from prfaas.engine.transformers.tiny import build_tiny

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "two-clusters.yaml")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def up(*arguments: str, state: Path) -> tuple[int, str, list[str]]:
    """Exit code, what was said, and the lines of what was said of errors."""
    command = [sys.executable, "-m", "prfaas.cli.main", "up", *arguments, "--port", "29321"]
    environ = os.environ | {"XDG_STATE_HOME": str(state)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("tiny-qwen3", tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("tokenizer", "tokenizer.json: cannot be read"),
        ("weights", "model.safetensors: not a whole safetensors file"),
        ("config", "config.json:1: not valid JSON"),
        ("family", "model_type is 'abacus', which transformers"),
    ],
)
def test_one_line_and_nothing_starts(tiny: Path, tmp_path: Path, wrong: str, words: str) -> None:
    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    match wrong:
        case "tokenizer":
            (model / "tokenizer.json").unlink()
        case "weights":
            os.truncate(model / "model.safetensors", 10_000)
        case "config":
            (model / "config.json").write_text("{")
        case "family":
            config = json.loads((model / "config.json").read_text()) | {"model_type": "abacus"}
            (model / "config.json").write_text(json.dumps(config))
    code, out, (*progress, said) = up(EXAMPLE, "--model", str(model), state=tmp_path / "state")
    assert (code, out) == (2, "")
    assert words in said
    assert progress in ([], ["checking model ..."])
    assert not (tmp_path / "state").exists(), "nothing was prepared, so nothing was started"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_an_accelerator_that_is_not_there(tmp_path: Path) -> None:
    """Also with a model of the catalog."""
    topology = tmp_path / "two.yaml"
    text = Path(EXAMPLE).read_text()
    topology.write_text(
        text.replace("name: far-prefill,", "name: far-prefill, engine: {kind: transformers, device: cuda},")
    )
    assert topology.read_text() != text
    code, out, said = up(str(topology), "--model", "tiny-qwen3", state=tmp_path / "state")
    assert (code, out) == (2, "")
    line = 1 + text[: text.index("name: far-prefill,")].count("\n")
    assert said[-1] == f"{topology}:{line}: clusters.far.nodes[0].engine.device: device 'cuda': no CUDA device here"
    assert not (tmp_path / "state").exists(), "nothing was prepared, so nothing was started"
