"""The JSON Schema of the topology file, for editors and for the docs. Made from the types, never by hand."""

from __future__ import annotations

from typing import get_args

from prfaas.config.jsonschema import add_defaults, components, schema_text
from prfaas.config.kinds import DEFAULT_ENGINE
from prfaas.config.topology import Engine, Fault, Leases, Limits, Link, Topology


def topology_schema() -> str:
    """The schema as JSON text, stable from run to run."""
    (top,), shapes = components(Topology)
    add_defaults(shapes, Topology, Link, Limits, Leases, Fault)
    for shape in get_args(Engine):
        kind = shapes[shape.__name__]["properties"]["kind"]
        kind["description"] = "Which engine."
        if kind["enum"] == [DEFAULT_ENGINE]:
            kind["default"] = DEFAULT_ENGINE
            shapes[shape.__name__]["required"].remove("kind")
    return schema_text("prfaas topology", top, shapes)
