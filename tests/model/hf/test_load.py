"""Where layouts come from, and what is said when a config is not good: one line, with what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.model.hf.tinyfamilies import FAMILIES as TINY
from tests.model.hf.tinyfamilies import config_of

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import ConfigError
from prfaas.model.hf.families import FAMILIES
from prfaas.model.hf.load import CONFIGS, known_models, load_layout

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def written(directory: Path, config: Any) -> Path:
    file = directory / "config.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config, indent=1))
    return file


def refusal(directory: Path, config: Any) -> str:
    """What is said of `config`, after the file's name."""
    file = written(directory, config)
    with pytest.raises(ConfigError) as caught:
        load_layout(str(file))
    said = str(caught.value)
    assert said.startswith(f"{file}:")
    assert "\n" not in said
    return said.removeprefix(f"{file}:")


def test_a_file_and_its_directory_are_the_same(tmp_path: Path) -> None:
    file = written(tmp_path, LLAMA)
    assert load_layout(str(file)).parts == load_layout(str(tmp_path)).parts
    assert [part.shape for part in load_layout(str(file)).parts] == [(2, 16)] * 4


def test_names_in_any_case_with_or_without_their_organisation() -> None:
    assert "Qwen3-235B-A22B" in known_models()
    assert load_layout("Qwen/qwen3-235b-a22b") == load_layout("Qwen3-235B-A22B")


def test_every_known_config_is_read_and_says_where_it_is_from() -> None:
    for name in known_models():
        assert json.loads((CONFIGS / f"{name}.json").read_text())["_source"]
        layout = load_layout(name)
        assert 0 < layout.bytes_at(1) < layout.bytes_at(1 << 20)
        assert len({(part.layer, part.name) for part in layout.parts}) == len(layout.parts)


def test_an_unknown_name_lists_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        ConfigError, match=r"^Qwen3-235B: no such file or model \(did you mean Qwen3-235B-A22B\?\); "
    ) as e:
        load_layout("Qwen3-235B")
    assert all(name in str(e.value) for name in known_models())


def test_a_directory_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json there"):
        load_layout(str(tmp_path))


def test_fp8_rows_and_states_as_they_are() -> None:
    plain, small = load_layout("Qwen3.5-397B-A17B"), load_layout("Qwen3.5-397B-A17B", "fp8")
    for part, other in zip(plain.parts, small.parts, strict=True):
        assert other.unit_bytes * (1 if part.kind is PartKind.STATE else 2) == part.unit_bytes
    assert plain.revision != small.revision
    with pytest.raises(ConfigError, match="kv dtype: got 'int4'; expected one of bf16, fp8"):
        load_layout("Qwen3.5-397B-A17B", "int4")


def test_types_are_those_of_the_config(tmp_path: Path) -> None:
    assert {part.dtype for part in load_layout(str(written(tmp_path, LLAMA))).parts} == {"bfloat16"}
    written(tmp_path, LLAMA | {"torch_dtype": "float16"})
    assert {part.dtype for part in load_layout(str(tmp_path)).parts} == {"float16"}
    written(tmp_path, config_of("nemotron_h") | {"mamba_ssm_cache_dtype": "bfloat16"})
    assert {part.dtype for part in load_layout(str(tmp_path)).parts} == {"bfloat16"}


def test_a_nested_text_config_is_the_model(tmp_path: Path) -> None:
    flat = load_layout(str(written(tmp_path, LLAMA))).parts
    nested = {"model_type": "seer", "torch_dtype": "bfloat16", "text_config": LLAMA, "vision_config": {"depth": 3}}
    assert load_layout(str(written(tmp_path, nested))).parts == flat
    nested["text_config"] = {name: value for name, value in LLAMA.items() if name != "hidden_size"}
    assert refusal(tmp_path, nested) == "4: text_config: `hidden_size` is missing; expected a whole number of 1 or more"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_hidden_layers": None}, "1: `num_hidden_layers` is missing; expected a whole number of 1 or more"),
        (
            {"num_hidden_layers": 0},
            "3: num_hidden_layers: got 0; expected a whole number of 1 or more, at most 16777216",
        ),
        ({"num_hidden_layers": True}, "3: num_hidden_layers: got true; expected a whole number of 1 or more"),
        ({"num_hidden_layers": 10**6}, "3: num_hidden_layers: got 1000000; expected at most 4096"),
        ({"num_key_value_heads": "8"}, '6: num_key_value_heads: got "8"; expected a whole number of 1 or more'),
        ({"hidden_size": 66}, "4: hidden_size: got 66; expected a multiple of `num_attention_heads`, 4"),
        ({"torch_dtype": "int3"}, '7: torch_dtype: got "int3"; expected one of bfloat16, float16, float32'),
        ({"layer_types": ["full_attention"]}, '7: layer_types: got ["full_attention"]; expected 2 of them, as many as'),
        ({"layer_types": ["gas", "gas"]}, '7: layer_types: got ["gas", "gas"]; expected a list of full_attention, '),
        ({"sliding_window": 1}, "7: sliding_window: got 1; expected a window of 2 tokens or more"),
        ({"model_type": None}, "1: `model_type` is missing; expected one of bailing_hybrid, bamba, "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    config = {name: value for name, value in (LLAMA | change).items() if value is not None}
    assert refusal(tmp_path, config).startswith(said)


def test_an_unknown_family_lists_the_known_ones(tmp_path: Path) -> None:
    said = refusal(tmp_path, LLAMA | {"model_type": "gpt7"})
    assert said == f'2: model_type: got "gpt7"; expected one of {", ".join(sorted(FAMILIES))}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "1: not valid JSON: "),
        ('{\n"a": 1,\n}', "3: not valid JSON: "),
        ("[1]", "1: got list; expected a mapping"),
        ("[" * 100_000, "1: nested too deeply"),
        ('{"text_config": 3}', "1: text_config: got 3; expected a mapping"),
        (
            '{\n"a": ' + "7" * 5000 + "}",
            "2: got 77777777777777777777..., a number of 5000 digits; expected at most 400",
        ),
        ('{\n\n"a": [{"b": -' + "8" * 401 + "}]}", "3: got -8888888888888888888..., a number of 401 digits; expected"),
        ('{"model_type": "llama", "num_hidden_layers": ' + "9" * 400 + "}", "1: num_hidden_layers: got 999"),
    ],
)
def test_what_is_no_config(tmp_path: Path, text: str, said: str) -> None:
    assert refusal(tmp_path, text).startswith(said)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(ConfigError, match="not UTF-8 text"):
        load_layout(str(file))


@pytest.mark.parametrize("family", list(TINY))
def test_no_setting_that_counts_is_guessed(tmp_path: Path, family: str) -> None:
    """Without any one of its settings a config is refused with that setting's name, or its layout is the same, or the
    setting is one of those with a documented default."""
    defaults = {
        "dtype",  # bfloat16
        "num_key_value_heads",  # as many as heads
        "head_dim",  # hidden_size / num_attention_heads
        "layer_types",  # a family's usual order, where it has one
        "full_attention_interval",  # 4
        "sliding_window_pattern",  # 6
        "sliding_window",  # no window
        "use_sliding_window",  # no window
        "mamba_d_ssm",  # mamba_expand * hidden_size
        "short_conv_kernel_size",  # without it, bailing_hybrid has Lightning attention
    }
    whole = config_of(family)
    expected = load_layout(str(written(tmp_path, whole))).parts
    inner = whole.get("text_config", whole)
    for name in inner:
        less = {key: value for key, value in inner.items() if key != name}
        written(tmp_path, whole | {"text_config": less} if "text_config" in whole else less)
        said = outcome(tmp_path)
        assert said in (expected, "missing") or name in defaults, name


def outcome(directory: Path) -> object:
    """The parts of the layout, "missing" when a setting is said to be, or what else was said."""
    try:
        return load_layout(str(directory)).parts
    except ConfigError as error:
        return "missing" if "` is missing; expected " in str(error) else str(error)
