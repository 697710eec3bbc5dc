"""`prfaas plan`: what PrfaaS would bring: designs side by side, and a verdict."""

from __future__ import annotations

from pathlib import Path

import click

from prfaas.plan.answer import answer, answer_json
from prfaas.plan.inputs import read_inputs
from prfaas.plan.places import check_directory, check_file, read_files
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan
from prfaas.plan.plots import check_drawing, draw_all
from prfaas.plan.report import report
from prfaas.plan.topologyfile import write_topology_file


@click.command("plan")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--exact", is_flag=True, help="Integrate over the lengths, instead of the paper's formulas.")
@click.option("--json", "as_json", is_flag=True, help="As JSON (docs/schemas/plan.json).")
@click.option(
    "--topology", type=click.Path(path_type=Path), help="Write a topology of emulated nodes like it, for `prfaas up`."
)
@click.option("--force", is_flag=True, help="Replace the topology file if it is there.")
@click.option("--plots", type=click.Path(path_type=Path), help="Draw pictures into this directory (needs matplotlib).")
@click.option("--plot-format", type=click.Choice(("svg", "png")), default="svg", show_default=True, help="Of pictures.")
def command(
    file: Path, exact: bool, as_json: bool, topology: Path | None, force: bool, plots: Path | None, plot_format: str
) -> None:
    """Compare designs for the model, traffic, clusters and links that FILE describes."""
    said, document = read_plan(file)
    if topology is not None:
        check_file(topology, read_files(file, said), force=force)
    elif force:
        raise click.UsageError("got --force without --topology; expected both")
    if plots is not None:
        check_directory(plots)
        check_drawing()
    plan = Plan(read_inputs(said, document))
    compared = plan.exact if exact else plan.paper
    if as_json:
        click.echo(answer_json(answer(plan, compared)), nl=False)
    else:
        click.echo(report(plan, compared), nl=False)
    if topology is not None:
        write_topology_file(plan, topology)
    if plots is not None:
        for path in draw_all(plan, plots, plot_format):
            click.echo(f"drawn: {path}", err=True)
