"""The JSON Schema of the topology file, for editors and for the docs. Made from the types, never by hand."""

from __future__ import annotations

import json
from typing import Any, get_args

import msgspec
from msgspec.structs import fields

from prfaas.config.complaint import written
from prfaas.config.kinds import DEFAULT_ENGINE
from prfaas.config.topology import Engine, Fault, Leases, Limits, Link, Topology
from prfaas.config.units import Endpoint, Quantity


def topology_schema() -> str:
    """The schema as JSON text, stable from run to run."""
    (top,), shapes = msgspec.json.schema_components([Topology], schema_hook=_schema, ref_template="#/$defs/{name}")
    for shape in Topology, Link, Limits, Leases, Fault:
        for field in fields(shape):
            if callable(field.default_factory):
                shapes[shape.__name__]["properties"][field.encode_name]["default"] = _written(field.default_factory())
    for shape in get_args(Engine):
        kind = shapes[shape.__name__]["properties"]["kind"]
        kind["description"] = "Which engine."
        if kind["enum"] == [DEFAULT_ENGINE]:
            kind["default"] = DEFAULT_ENGINE
            shapes[shape.__name__]["required"].remove("kind")
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "prfaas topology",
        **top,
        "$defs": shapes,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Quantity):
        return {"type": "string", "pattern": kind.pattern()}
    if issubclass(kind, Endpoint):
        return {"type": "string", "pattern": kind.PATTERN, "examples": ["127.0.0.1:8000"]}
    raise TypeError(f"no schema for {kind.__name__}")


def _written(value: Any) -> Any:
    """A default as it is written in a file: with its unit."""
    return msgspec.to_builtins(value, enc_hook=written)
