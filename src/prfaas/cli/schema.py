"""`prfaas schema`: the JSON Schemas of what prfaas reads and says, on standard output."""

from __future__ import annotations

import importlib

import click

SCHEMAS = {
    "topology": ("prfaas.config.schema", "topology_schema"),
    "model": ("prfaas.model.hf.report", "model_schema"),
    "plan": ("prfaas.plan.planschema", "plan_schema"),
    "planfile": ("prfaas.plan.planschema", "planfile_schema"),
    "profile": ("prfaas.model.profileschema", "profile_schema"),
    "scenario": ("prfaas.sim.schema", "scenario_schema"),
    "simulate": ("prfaas.sim.schema", "simulate_schema"),
}
"""What -> the module and the function that make its schema."""


@click.command("schema")
@click.argument("what", type=click.Choice(list(SCHEMAS)), default="topology")
def command(what: str) -> None:
    """Print a JSON Schema: of the topology file (the default), or of what `prfaas WHAT --json` says."""
    module, function = SCHEMAS[what]
    click.echo(getattr(importlib.import_module(module), function)(), nl=False)
