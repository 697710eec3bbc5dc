"""`prfaas up --model DIRECTORY` says what is wrong with it, in one line, and starts nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prfaas.engine.transformers.tiny import build_tiny

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "two-clusters.yaml")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("tiny-qwen3", tmp_path_factory.mktemp("tiny") / "model")


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("tokenizer", "tokenizer.json: cannot be read"),
        ("weights", "model.safetensors: not a whole safetensors file"),
        ("config", "config.json: cannot be read as JSON"),
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
    command = [sys.executable, "-m", "prfaas.cli.main", "up", EXAMPLE, "--port", "29321", "--model", str(model)]
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, env=environ)
    assert (done.returncode, done.stdout) == (2, "")
    *progress, said = done.stderr.splitlines()
    assert words in said
    assert progress in ([], ["checking model ..."])
    assert not (tmp_path / "state").exists(), "nothing was prepared, so nothing was started"
