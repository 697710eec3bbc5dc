"""`prfaas schema`: the JSON Schema of the topology file, on standard output."""

from __future__ import annotations

import click

from prfaas.config.schema import topology_schema


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of the topology file."""
    click.echo(topology_schema(), nl=False)
