"""The JSON Schemas of plan files and of `prfaas plan --json`. Made from the types, never by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import fields

from prfaas.config.complaint import written
from prfaas.config.units import Quantity
from prfaas.plan.answer import PlanAnswer
from prfaas.plan.planfile import Compare, PlanFile, PlanLink


def planfile_schema() -> str:
    """Of the plan file, as JSON text, stable from run to run."""
    (top,), shapes = msgspec.json.schema_components([PlanFile], schema_hook=_schema, ref_template="#/$defs/{name}")
    for shape in PlanLink, Compare:
        for one in fields(shape):
            if callable(one.default_factory):
                value = msgspec.to_builtins(one.default_factory(), enc_hook=written)
                shapes[shape.__name__]["properties"][one.encode_name]["default"] = value
    for name in "LogNormal", "Trace":
        shapes[name]["properties"]["kind"]["description"] = "Where lengths come from."
    return _text("prfaas plan file", top, shapes)


def plan_schema() -> str:
    """Of the answer, as JSON text, stable from run to run."""
    (top,), shapes = msgspec.json.schema_components([PlanAnswer], schema_hook=_schema, ref_template="#/$defs/{name}")
    return _text("prfaas plan", top, shapes)


def _text(title: str, top: dict[str, Any], shapes: dict[str, Any]) -> str:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **top, "$defs": shapes}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Quantity):
        return {"type": "string", "pattern": kind.pattern()}
    raise TypeError(f"no schema for {kind.__name__}")
