"""What nodes of kind vllm may say, and which of their listeners must be said."""

from __future__ import annotations

from pathlib import Path

import pytest

from prfaas.config.reader import read_topology
from prfaas.config.topology import VllmEngine
from prfaas.config.vllmflags import INSTEAD
from prfaas.core.errors import ConfigError

ALL = "listen: 0.0.0.0:1, advertise: h, control_listen: 0.0.0.0:2, data_listen: 0.0.0.0:3"


def engine(tmp_path: Path, said: str, node: str = "") -> VllmEngine:
    file = tmp_path / "t.yaml"
    comma = ", " if said else ""
    file.write_text(
        "model: m\nclusters:\n  home:\n    kind: pd\n    nodes:\n"
        f"      - {{name: d0, role: decode, {node} engine: {{kind: vllm{comma}{said}}}}}\n"
    )
    found = read_topology(file).clusters["home"].nodes[0].engine
    assert isinstance(found, VllmEngine)
    return found


def refused(tmp_path: Path, said: str, node: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        engine(tmp_path, said, node)
    start = f"{tmp_path / 't.yaml'}:6: clusters.home.nodes[0]"
    assert str(caught.value).startswith(start)
    return str(caught.value).removeprefix(start)


@pytest.mark.parametrize("flag", INSTEAD)
@pytest.mark.parametrize("form", ["{}, x", "{}=x", "{}.key=x"])
def test_flags_that_prfaas_gives_are_not_for_arguments(tmp_path: Path, flag: str, form: str) -> None:
    said = refused(tmp_path, f"arguments: [--enforce-eager, {form.format(flag)}]")
    assert said == f".engine.arguments[1]: {flag} is not for `arguments`; expected {INSTEAD[flag]}"


@pytest.mark.parametrize("flag", ["--max_model_len=7", "--served-model-n", "--max-num-s", "--kv_transfer_config"])
def test_nor_in_other_words(tmp_path: Path, flag: str) -> None:
    assert "is not for `arguments`" in refused(tmp_path, f"arguments: [{flag}]")


def test_other_flags_are(tmp_path: Path) -> None:
    flags = [
        "--tensor-parallel-size",
        "8",
        "-tp=8",
        "--model-impl",
        "--max-num-partial-prefills",
        "--max-log-len",
        "-O3",
    ]
    assert list(engine(tmp_path, f"arguments: [{', '.join(map(repr, flags))}]").arguments) == flags


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("block_tokens: 7", ".engine.block_tokens: got 7; expected a multiple of 16, as vLLM's attention kernels do"),
        ("chunk_tokens: 4", ".engine.chunk_tokens: got 4; expected 8 or more: a token for each of max_sequences"),
        ("recompute_below: -1", ".engine.recompute_below: got -1; expected a whole number >= 0"),
        ("connector: nixl, recompute_below: 9", ".engine.recompute_below: NixlConnector has no such setting; expected"),
    ],
)
def test_what_would_be_refused_later(tmp_path: Path, said: str, what: str) -> None:
    assert refused(tmp_path, said).startswith(what)


@pytest.mark.parametrize("key", ["listen", "control_listen", "data_listen"])
def test_a_node_that_others_reach_names_all_its_listeners(tmp_path: Path, key: str) -> None:
    assert engine(tmp_path, "", ALL + ",")
    left = ", ".join(part for part in ALL.split(", ") if not part.startswith(key))
    assert (
        refused(tmp_path, "", left + ",")
        == f": no `{key}`; expected HOST:PORT, since other machines are to reach this node"
    )


@pytest.mark.parametrize("said", ["connector: nixl", "inside: nixl"])
def test_with_nixl_its_side_channel_is_one_of_them(tmp_path: Path, said: str) -> None:
    listed = ALL if said.startswith("inside") else "listen: 0.0.0.0:1, advertise: h"
    assert "no `nixl_listen`" in refused(tmp_path, said, listed + ",")
    assert engine(tmp_path, said, listed + ", nixl_listen: 0.0.0.0:4,")


def test_nixl_between_clusters_is_nixl_inside_them_too(tmp_path: Path) -> None:
    assert engine(tmp_path, "connector: nixl").connectors == ("nixl",)
    assert engine(tmp_path, "connector: nixl, inside: prfaas").connectors == ("prfaas", "nixl")
    assert engine(tmp_path, "").connectors == ("prfaas",)
