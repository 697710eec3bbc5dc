"""The JSON Schemas of scenario files and of `prfaas simulate --json`. Made from the types, never by hand."""

from __future__ import annotations

from prfaas.config.jsonschema import add_defaults, components, schema_text
from prfaas.sim.answer import CompareAnswer, FindMaxAnswer, SimulateAnswer
from prfaas.sim.scenario import Balanced, Bursts, Diurnal, Even, Mmpp, Poisson, Scenario, Users


def simulate_schema() -> str:
    """Of the answer: of one run, of `--compare`, or of `--find-max`."""
    tops, shapes = components(SimulateAnswer, CompareAnswer, FindMaxAnswer)
    return schema_text("prfaas simulate", {"anyOf": list(tops)}, shapes)


def scenario_schema() -> str:
    """Of the scenario file."""
    (top,), shapes = components(Scenario)
    arrivals = (Poisson, Even, Bursts, Mmpp, Diurnal, Users)
    add_defaults(shapes, *arrivals, Balanced, Scenario)
    for shape in arrivals:
        shapes[shape.__name__]["properties"]["kind"]["description"] = "How requests come."
    return schema_text("prfaas scenario file", top, shapes)
