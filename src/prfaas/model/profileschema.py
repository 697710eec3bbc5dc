"""The JSON Schema of profile files, and profiles as JSON. Made from the types, never by hand."""

from __future__ import annotations

import json

import msgspec

from prfaas.config.complaint import written
from prfaas.config.jsonschema import components, schema_text
from prfaas.model.profilefile import ProfileFile


def profile_schema() -> str:
    """The schema as JSON text, stable from run to run."""
    (top,), shapes = components(ProfileFile)
    return schema_text("prfaas profile", top, shapes)


def profile_json(said: ProfileFile) -> str:
    """`said` as JSON that fits the schema and that is a profile file itself: a row's `context` is left out if None."""
    value = msgspec.to_builtins(said, enc_hook=written)
    for row in value["decode"]["points"]:
        if row["context"] is None:
            del row["context"]
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"
