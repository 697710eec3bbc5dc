"""The JSON Schema in docs/ is the one that the types give, and it says what the reader says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from prfaas.config.schema import topology_schema

ROOT = Path(__file__).parents[2]


def test_the_file_in_docs_is_current() -> None:
    stored = (ROOT / "docs" / "schemas" / "topology.json").read_text()
    assert stored == topology_schema(), "stale; write it anew: prfaas schema > docs/schemas/topology.json"


def example() -> Any:
    return yaml.safe_load((ROOT / "examples" / "two-clusters.yaml").read_text())


def test_the_example_fits() -> None:
    jsonschema.Draft202012Validator.check_schema(json.loads(topology_schema()))
    jsonschema.validate(example(), json.loads(topology_schema()))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("links", 0, "bandwidth"), "1GBps"),
        (("links", 0, "rtt"), 20),
        (("policy", "threshold"), 0),
        (("clusters", "home", "kind"), "dp"),
        (("clusters", "home", "nods"), []),
        (("clusters", "Home"), {}),
    ],
)
def test_faults_do_not_fit(place: tuple[Any, ...], value: object) -> None:
    broken = example()
    inner = broken
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, json.loads(topology_schema()))


def described(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, shape in schema["$defs"].items():
        for key, field in shape["properties"].items():
            yield f"{name}.{key}", {**field, "required": key in shape.get("required", ())}


def test_every_setting_is_described_and_has_its_default() -> None:
    for name, field in described(json.loads(topology_schema())):
        assert field.get("description"), name
        assert field["required"] or "default" in field, name


def test_defaults_have_units() -> None:
    limits = json.loads(topology_schema())["$defs"]["Limits"]["properties"]
    assert limits["deadline"]["default"] == "10m"
    assert limits["landing_buffer"]["default"] == "1GiB"
    assert limits["leases"]["default"]["transfer"] == "15s"
