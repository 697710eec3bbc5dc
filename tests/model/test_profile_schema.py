"""The JSON Schema in docs/ is the one that the types give, and profiles as JSON fit it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from prfaas.model.profilefile import built_in, load_profile_file, read_profile_file
from prfaas.model.profileschema import profile_json, profile_schema

FILE = Path(__file__).parents[2] / "docs" / "schemas" / "profile.json"
SCHEMA = json.loads(profile_schema())


def test_the_file_in_docs_is_current() -> None:
    assert FILE.read_text() == profile_schema(), (
        "stale; write it anew: prfaas schema profile > docs/schemas/profile.json"
    )


@pytest.mark.parametrize("name", built_in())
def test_profiles_as_json(tmp_path: Path, name: str) -> None:
    text = profile_json(load_profile_file(name))
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(json.loads(text), SCHEMA)
    file = tmp_path / "p.json"
    file.write_text(text)
    assert read_profile_file(file) == load_profile_file(name)


@pytest.mark.parametrize(
    ("where", "value"),
    [
        (("prefill", "basis"), "guessed"),
        (("decode", "points"), []),
        (("prefill", "points", 0, "time"), "1"),
        (("x",), 1),
    ],
)
def test_faults_do_not_fit(where: tuple[Any, ...], value: object) -> None:
    broken = inner = json.loads(profile_json(load_profile_file("paper-h20")))
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCHEMA)


def test_every_setting_is_described() -> None:
    for shape in SCHEMA["$defs"].values():
        for name, field in shape["properties"].items():
            assert field.get("description") or field["anyOf"][0].get("description"), name
