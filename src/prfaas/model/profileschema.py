"""The JSON Schema of profile files, and profiles as JSON. Made from the types, never by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from prfaas.config.complaint import written
from prfaas.config.units import Quantity
from prfaas.model.profilefile import ProfileFile


def profile_schema() -> str:
    """The schema as JSON text, stable from run to run."""
    (top,), shapes = msgspec.json.schema_components([ProfileFile], schema_hook=_schema, ref_template="#/$defs/{name}")
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "prfaas profile",
        **top,
        "$defs": shapes,
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def profile_json(said: ProfileFile) -> str:
    """`said` as JSON that fits the schema and that is a profile file itself: a row's `context` is left out if None."""
    value = msgspec.to_builtins(said, enc_hook=written)
    for row in value["decode"]["points"]:
        if row["context"] is None:
            del row["context"]
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Quantity):
        return {"type": "string", "pattern": kind.pattern()}
    raise TypeError(f"no schema for {kind.__name__}")
