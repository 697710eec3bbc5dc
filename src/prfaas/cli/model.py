"""`prfaas model`: what a model's KV cache is made of and weighs."""

from __future__ import annotations

import click

from prfaas.model.hf.load import load_layout


@click.command("model")
@click.argument("config")
def command(config: str) -> None:
    """The KV layout of CONFIG: a config.json, a directory with one, or a known name."""
    load_layout(config)
