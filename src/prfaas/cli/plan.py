"""`prfaas plan`: what PrfaaS would bring: designs side by side, and a verdict."""

from __future__ import annotations

from pathlib import Path

import click

from prfaas.core.errors import ConfigError


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
def command(file: Path) -> None:
    """Compare designs for the model, traffic, clusters and links that FILE describes."""
    raise ConfigError(f"{file}: plans cannot be made yet")
