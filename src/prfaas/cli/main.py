"""The command `prfaas`: which programs there are. Each is imported when it is used, so that `--help` needs no torch."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from prfaas import __version__
from prfaas.core.errors import LocalError
from prfaas.runtime import lifeline

COMMANDS = {
    "up": ("prfaas.cli.up", "Start all of a topology on this machine."),
    "gateway": ("prfaas.cli.gateway", "Head of a PD cluster: the OpenAI endpoint."),
    "prefill-service": ("prfaas.cli.service", "Head of a PrfaaS cluster."),
    "node": ("prfaas.cli.node", "One node: an embedded engine, or `vllm serve`."),
    "validate": ("prfaas.cli.validate", "Check a topology file."),
    "schema": ("prfaas.cli.schema", "Print a JSON Schema: of the topology file, or of a command's --json."),
    "model": ("prfaas.cli.model", "What a model's KV cache is made of and weighs."),
    "profile": ("prfaas.cli.profile", "Make, measure and show profiles: how long hardware takes."),
    "plan": ("prfaas.cli.plan", "What PrfaaS would bring: designs side by side, and a verdict."),
    "simulate": ("prfaas.cli.simulate", "Run a plan's clusters in virtual time: queues, bursts, caches, faults."),
    "fetch": ("prfaas.cli.fetch", "Fetch a model of the catalog."),
}
"""Command -> the module that has it as `command`, and its help."""


class Programs(click.Group):
    """The commands of `COMMANDS`, each imported only when it runs or shows its own help."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[name][0]).command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LocalError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)


@click.command(cls=Programs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="prfaas")
def cli() -> None:
    """Prefill-as-a-Service: long prompts prefilled in one datacenter, decoded in another."""


def main() -> None:
    """The entry point. Exit codes: 0 good, 1 failed, 2 the file, environment or command line is wrong."""
    lifeline.watch(os.environ)
    cli(prog_name="prfaas")


if __name__ == "__main__":
    main()
