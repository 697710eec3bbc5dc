"""What the model at hand, or a node's memory, does not allow: `validate` and `up` say it at once, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.test_main import prfaas

from prfaas.engine.transformers.tiny import build_tiny

FILE = """model: {model}
clusters:
  home:
    kind: pd
    nodes:
      - {{name: home-decode, role: decode, engine: {{kind: {kind}}}}}
limits: {{max_model_len: {longest}}}
"""


pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("tiny-hybrid", tmp_path_factory.mktemp("fits") / "model")


def wrong(tmp_path: Path, model: str, kind: str, longest: int = 100) -> str:
    """What both say, without the file's name."""
    file = tmp_path / "t.yaml"
    file.write_text(FILE.format(model=model, kind=kind, longest=longest))
    said = []
    for command in ("validate", "up"):
        code, out, error = prfaas(command, str(file))
        assert (code, out, error.count("\n")) == (2, "", 1), error
        said.append(error.removeprefix(f"{file}:").rstrip())
    assert said[0] == said[1]
    return said[0]


@pytest.mark.slow
def test_longer_than_the_model_was_made_for(tiny: Path, tmp_path: Path) -> None:
    assert wrong(tmp_path, str(tiny), "transformers", 10**8) == (
        "7: limits.max_model_len: got 100000000; expected at most 1048576, which the model was made for"
    )


@pytest.mark.slow
def test_memory_for_less_than_a_block_of_real_layers(tiny: Path, tmp_path: Path) -> None:
    said = wrong(tmp_path, str(tiny), "transformers, kv_memory: 1KiB")
    assert said.startswith("6: clusters.home.nodes[0].engine.kv_memory: KV memory of 1024 bytes; expected more: states")


def test_memory_for_less_than_the_states_of_an_emulated_model(tmp_path: Path) -> None:
    said = wrong(tmp_path, "emulated", "emulated, kv_memory: 1KiB")
    assert said.startswith("6: clusters.home.nodes[0].engine.kv_memory: KV memory of 1024 bytes; expected more: states")


@pytest.mark.parametrize(
    ("model", "words"),
    [("./nodir", "no config.json there"), ("gpt-99", "not in the catalog"), ("/dev/null", "no con")],
)
def test_no_such_model(tmp_path: Path, model: str, words: str) -> None:
    said = wrong(tmp_path, model, "transformers")
    assert said.startswith("1: model: model ")
    assert words in said
