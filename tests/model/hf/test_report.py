"""Groups, the JSON answer and its schema, and the command `prfaas model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from prfaas.cli.main import cli
from prfaas.core.errors import ConfigError
from prfaas.model.hf.groups import bytes_per_token, groups_of, state_bytes
from prfaas.model.hf.lengths import length_text, parse_lengths
from prfaas.model.hf.load import known_models, load_layout
from prfaas.model.hf.report import model_schema, report

ROOT = Path(__file__).parents[3]
models = st.sampled_from(known_models()).map(load_layout)


def prfaas(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, arguments, prog_name="prfaas")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stdout, result.stderr


@given(models, st.integers(1, 1 << 21))
def test_groups_add_up_to_the_layout(layout: Any, length: int) -> None:
    groups = groups_of(layout)
    assert sum(group.bytes_at(length) for group in groups) == layout.bytes_at(length)
    assert sum(group.state_bytes for group in groups) == state_bytes(layout)
    longest = max((part.window for part in layout.parts), default=0)
    if length > longest:
        assert layout.bytes_at(length + 1) - layout.bytes_at(length) == bytes_per_token(layout)


@given(models)
def test_every_report_fits_the_schema(layout: Any) -> None:
    said = msgspec.to_builtins(report(layout, (1, 32768)))
    jsonschema.validate(json.loads(json.dumps(said)), json.loads(model_schema()))


@given(st.integers(1, 1 << 30))
def test_lengths_round_trip(length: int) -> None:
    assert parse_lengths(length_text(length)) == (length,)


@pytest.mark.parametrize("text", ["", "K", "1K,", "0", "-1", "1.5K", "1G", "1 K", "2000M", "9" * 30, "1K;8K", "٣"])
def test_bad_lengths_are_one_clear_error(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^lengths: got '.*'; expected tokens such as 1K,8K,32768 "):
        parse_lengths(text)


def test_lengths_as_people_write_them() -> None:
    assert parse_lengths("1K, 8k,1000,1M,1024") == (1024, 8192, 1000, 1 << 20)


def test_the_schema_in_docs_is_current() -> None:
    stored = (ROOT / "docs" / "schemas" / "model.json").read_text()
    assert stored == model_schema(), "stale; write it anew: prfaas schema model > docs/schemas/model.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(stored))


def test_the_schema_command_knows_it_and_refuses_others() -> None:
    assert prfaas("schema", "model") == (0, model_schema(), "")
    assert prfaas("schema", "weather")[0] == 2


def test_json_is_what_was_promised() -> None:
    code, said, _ = prfaas("model", "MiMo-V2-Flash", "--lengths", "100,32K", "--json")
    found = json.loads(said)
    assert code == 0
    assert list(found) == ["groups", "bytes_per_token", "state_bytes", "lengths"]
    assert (found["bytes_per_token"], found["state_bytes"]) == (23_040, 0)
    assert found["lengths"] == {
        "100": {"bytes": 22_272_000, "mib": 22_272_000 / 2**20},
        "32768": {"bytes": 780_533_760, "mib": 780_533_760 / 2**20},
    }
    full, near = found["groups"]
    assert (full["kind"], full["layers"], full["bytes_per_token"]) == ("attention", [0, *range(5, 48, 6)], 23_040)
    assert "window" not in full
    assert "state_bytes" not in full
    assert (near["kind"], near["window"], len(near["layers"])) == ("window", 128, 39)
    assert near["parts"] == [
        {"name": "k", "shape": [8, 192], "dtype": "bfloat16", "bytes": 3072},
        {"name": "v", "shape": [8, 128], "dtype": "bfloat16", "bytes": 2048},
    ]


def test_a_table_for_people() -> None:
    code, said, _ = prfaas("model", "Qwen3.5-397B-A17B", "--lengths", "8K")
    assert code == 0
    assert said.startswith(
        "Qwen3.5-397B-A17B: KV cache of one sequence\n"
        "\n"
        "kind       layers  a layer keeps             dtype     bytes, all layers\n"
        "attention  15      k, v 2 x 256 each         bfloat16  30,720 a token\n"
        "state      45      conv 1 x 12288 x 3        bfloat16  3,317,760 in all\n"
        "                   recurrent 64 x 128 x 128  float32   188,743,680 in all\n"
        "\n"
        "30,720 bytes a token, 192,061,440 bytes of states\n"
        "        8K         423.2 MiB\n"
    )
    assert "float8_e4m3fn" in prfaas("model", "Qwen3.5-397B-A17B", "--kv-dtype", "fp8")[1]


def test_known_names_can_be_listed() -> None:
    assert prfaas("model", "--list") == (0, "".join(f"{name}\n" for name in known_models()), "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "CONFIG: got nothing; expected a config.json"),
        (("nowhere",), "nowhere: no such file or model; expected"),
        (("LFM2-1.2B", "--lengths", "1X"), "lengths: got '1X'; expected"),
    ],
)
def test_faults_are_one_line_and_exit_code_2(arguments: tuple[str, ...], said: str) -> None:
    code, out, wrong = prfaas("model", *arguments)
    assert (code, out, wrong.count("\n")) == (2, "", 1)
    assert wrong.startswith(said)
