"""The JSON Schemas of scenario files and of `prfaas simulate --json`. Made from the types, never by hand."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec.structs import fields

from prfaas.config.complaint import written
from prfaas.config.units import Quantity
from prfaas.sim.answer import CompareAnswer, FindMaxAnswer, SimulateAnswer
from prfaas.sim.scenario import Bursts, Diurnal, Even, Mmpp, Poisson, Scenario, Users


def simulate_schema() -> str:
    """Of the answer: of one run, of `--compare`, or of `--find-max`."""
    kinds = [SimulateAnswer, CompareAnswer, FindMaxAnswer]
    tops, shapes = msgspec.json.schema_components(kinds, schema_hook=_schema, ref_template="#/$defs/{name}")
    return _text("prfaas simulate", {"anyOf": list(tops)}, shapes)


def scenario_schema() -> str:
    """Of the scenario file."""
    (top,), shapes = msgspec.json.schema_components([Scenario], schema_hook=_schema, ref_template="#/$defs/{name}")
    for shape in (Poisson, Even, Bursts, Mmpp, Diurnal, Users):
        shapes[shape.__name__]["properties"]["kind"]["description"] = "How requests come."
        for one in fields(shape):
            if callable(one.default_factory):
                value = msgspec.to_builtins(one.default_factory(), enc_hook=written)
                shapes[shape.__name__]["properties"][one.encode_name]["default"] = value
    return _text("prfaas scenario file", top, shapes)


def _text(title: str, top: dict[str, Any], shapes: dict[str, Any]) -> str:
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **top, "$defs": shapes}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, Quantity):
        return {"type": "string", "pattern": kind.pattern()}
    raise TypeError(f"no schema for {kind.__name__}")
