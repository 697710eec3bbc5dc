"""The JSON Schemas of plan files and of `prfaas plan --json`. Made from the types, never by hand."""

from __future__ import annotations

from prfaas.config.jsonschema import add_defaults, components, schema_text
from prfaas.plan.answer import PlanAnswer
from prfaas.plan.planfile import Compare, PlanFile, PlanLink


def planfile_schema() -> str:
    """Of the plan file, as JSON text, stable from run to run."""
    (top,), shapes = components(PlanFile)
    add_defaults(shapes, PlanLink, Compare)
    for name in "LogNormal", "Trace":
        shapes[name]["properties"]["kind"]["description"] = "Where lengths come from."
    return schema_text("prfaas plan file", top, shapes)


def plan_schema() -> str:
    """Of the answer, as JSON text, stable from run to run."""
    (top,), shapes = components(PlanAnswer)
    return schema_text("prfaas plan", top, shapes)
