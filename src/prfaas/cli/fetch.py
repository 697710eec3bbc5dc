"""`prfaas fetch`: have a model of the catalog in the cache, before it is needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from prfaas.cli.progress import StepLine
from prfaas.model.catalog import CATALOG, DEFAULT, find
from prfaas.model.fetch import resolve_model


@click.command("fetch")
@click.argument("name", default=DEFAULT)
@click.option("--list", "list_", is_flag=True, help="Show the catalog instead.")
def command(name: str, list_: bool) -> None:
    """Fetch model NAME (default: smollm2) and print its directory."""
    if list_:
        for entry in CATALOG.values():
            size = f"{entry.weights.size_bytes / 1e6:.0f} MB" if entry.weights else "built here"
            click.echo(f"{entry.name:<16} {size:>10}  {entry.licence:<19} {entry.about}")
        return
    click.echo(fetched(name))


def fetched(name: str) -> Path:
    """The directory of model `name`, with its licence and progress on standard error. Raises ConfigError."""
    entry, step, since = find(name), StepLine(sys.stderr), time.monotonic()
    told = False

    def progress(stage: str, seconds: float) -> None:
        nonlocal told
        if not told and entry is not None and entry.weights is not None:
            click.echo(f"model {entry.name}: licence {entry.licence}. {entry.terms}".rstrip(), err=True)
        told = True
        step(stage, seconds)

    try:
        directory = resolve_model(name, progress)
    finally:
        step.done()
    if told:
        click.echo(f"model {name} is ready after {time.monotonic() - since:.0f} s: {directory}", err=True)
    return directory
