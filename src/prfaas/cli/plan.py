"""`prfaas plan`: what PrfaaS would bring: designs side by side, and a verdict."""

from __future__ import annotations

from pathlib import Path

import click

from prfaas.plan.answer import answer, answer_json
from prfaas.plan.inputs import read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--exact", is_flag=True, help="Integrate over the lengths, instead of the paper's formulas.")
@click.option("--json", "as_json", is_flag=True, help="As JSON (docs/schemas/plan.json).")
def command(file: Path, exact: bool, as_json: bool) -> None:
    """Compare designs for the model, traffic, clusters and links that FILE describes."""
    said, document = read_plan(file)
    plan = Plan(read_inputs(said, document))
    compared = plan.exact if exact else plan.paper
    if as_json:
        click.echo(answer_json(answer(plan, compared)), nl=False)
