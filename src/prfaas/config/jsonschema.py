"""JSON Schemas made from msgspec's types: what every file's and every answer's schema has in common."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import fields

from prfaas.config.complaint import written
from prfaas.config.units import Endpoint, Quantity

Shapes = dict[str, dict[str, Any]]


def components(*kinds: Any) -> tuple[tuple[dict[str, Any], ...], Shapes]:
    """The schema of each of `kinds`, and the shapes by name that they refer to."""
    return msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template="#/$defs/{name}")


def add_defaults(shapes: Shapes, *structs: type) -> None:
    """Defaults that are made anew each time, which msgspec leaves out, as they are written in a file."""
    for struct in structs:
        for field in fields(struct):
            if callable(field.default_factory):
                value = msgspec.to_builtins(field.default_factory(), enc_hook=written)
                shapes[struct.__name__]["properties"][field.encode_name]["default"] = value


def schema_text(title: str, top: dict[str, Any], shapes: Shapes) -> str:
    """The whole schema as JSON text, stable from run to run."""
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **top, "$defs": shapes}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Quantity):
        return {"type": "string", "pattern": kind.pattern()}
    if issubclass(kind, Endpoint):
        return {"type": "string", "pattern": kind.PATTERN, "examples": ["127.0.0.1:8000"]}
    raise TypeError(f"no schema for {kind.__name__}")
