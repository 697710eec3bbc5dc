"""`prfaas profile`: show, make and measure profiles: how long hardware takes. It computes nothing itself."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import get_args

import click

from prfaas.cli.profileoptions import (
    MOST_NAME,
    Day,
    FilePath,
    Numbers,
    OneOf,
    Seconds,
    Secret,
    Whole,
    Words,
    product_at_most,
)
from prfaas.cli.profileplace import is_there, not_there
from prfaas.cli.profileshow import listed, shown
from prfaas.model.profilefile import Basis, ProfileFile, built_in, load_profile_file, read_profile_file
from prfaas.model.profilewrite import write_profile_file

BASES = get_args(get_args(Basis)[0])
SEQUENCES = "sequences such as 1,4,16"
MOST_SEQUENCES = 4096
"""That decode at once in a measurement: each is a connection."""
MOST_PROMPT = 1 << 24
"""Tokens of a measured prompt: some 80 MB of text."""
MOST_AT_ONCE = 1 << 25
"""Tokens of all prompts of a batch: they are made before the first is sent."""
MOST_BATCH = 1 << 20
"""As a profile file allows."""
MOST_WAY = 1 << 16
"""Of one kind of parallelism."""
DAY_S = 86400


@click.group("profile")
def command() -> None:
    """How long hardware takes: prefill by uncached and cached tokens, decode step by batch and context."""


@command.command("list")
def list_() -> None:
    """The profiles that come with prfaas."""
    click.echo(listed([(name, load_profile_file(name)) for name in built_in()]))


@command.command("show")
@click.argument("profile")
@click.option("--lengths", type=Numbers(), default="", metavar="1K,8K,...", help="Prefill times at these lengths, too.")
@click.option("--json", "json_", is_flag=True, help="As JSON: a profile file itself (docs/schemas/profile.json).")
def show(profile: str, lengths: tuple[int, ...], json_: bool) -> None:
    """What PROFILE, a built-in name or a file, says and where it comes from."""
    said = found(profile)
    if json_:
        from prfaas.model.profileschema import profile_json

        click.echo(profile_json(said), nl=False)
        return
    click.echo(shown(said, lengths))


@command.command("csv")
@click.argument("inputs", nargs=-1, required=True, type=FilePath(), metavar="IN...")
@click.argument("out", type=FilePath())
@click.option("--source", type=Words(), required=True, help="Where the times come from.")
@click.option("--name", type=Words(), help="What it is a profile of; without it OUT's name.")
@click.option("--date", "made", type=Day(), help="When they were measured; without it today.")
@click.option("--basis", type=OneOf(BASES), default="measured", show_default=True, help="How they came about.")
@click.option("--note", type=Words(blank=True), default="", help="What else there is to know.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def csv_(
    inputs: tuple[Path, ...],
    out: Path,
    source: str,
    name: str | None,
    made: datetime | None,
    basis: Basis,
    note: str,
    force: bool,
) -> None:
    """Make the profile file OUT of CSV files IN: one with both tables, or one for each.

    Columns: kind (prefill or decode), uncached, cached, batch, context, and time (with a unit) or time_s, time_ms.
    """
    from prfaas.model.profilecsv import read_csv

    not_there(out, force, inputs)
    said = read_csv(
        inputs, name=name or out.stem, source=source, made=made.date() if made else date.today(), basis=basis, note=note
    )
    write(said, out)


@command.command("aiconfigurator")
@click.argument("model", type=Words(MOST_NAME))
@click.argument("out", type=FilePath())
@click.option("--system", type=Words(MOST_NAME), required=True, help="The accelerator, such as h200_sxm.")
@click.option("--backend", type=Words(MOST_NAME), default="sglang", show_default=True, help="sglang, vllm or trtllm.")
@click.option("--backend-version", type=Words(MOST_NAME), help="Of its data; without it the newest whole ones.")
@click.option("--tp", type=Whole(1, MOST_WAY), default=1, show_default=True, help="Tensor parallel.")
@click.option("--pp", type=Whole(1, MOST_WAY), default=1, show_default=True, help="Pipeline parallel.")
@click.option("--attention-dp", type=Whole(1, MOST_WAY), default=1, show_default=True, help="Attention data parallel.")
@click.option("--moe-tp", type=Whole(1, MOST_WAY), default=1, show_default=True, help="Experts, tensor parallel.")
@click.option("--moe-ep", type=Whole(1, MOST_WAY), default=1, show_default=True, help="Experts, expert parallel.")
@click.option("--lengths", type=Numbers(), default="", help="Uncached tokens; without it 256 to 128K.")
@click.option("--cached", type=Numbers(), default="", help="Cached tokens before them; without it 8K, 32K, 128K.")
@click.option(
    "--batches",
    type=Numbers(SEQUENCES, MOST_BATCH),
    default="",
    help="Sequences that decode at once; without it 1 to 256.",
)
@click.option("--contexts", type=Numbers(), default="", help="Tokens of each of those; without it 1K to 128K.")
@click.option("--name", type=Words(), help="What it is a profile of; without it OUT's name.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def aiconfigurator(
    model: str,
    out: Path,
    system: str,
    backend: str,
    backend_version: str | None,
    tp: int,
    pp: int,
    attention_dp: int,
    moe_tp: int,
    moe_ep: int,
    lengths: tuple[int, ...],
    cached: tuple[int, ...],
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    name: str | None,
    force: bool,
) -> None:
    """Make the profile file OUT from kernels measured on real accelerators, by the package aiconfigurator-core.

    MODEL is a name that it knows (MiniMaxAI/MiniMax-M2.5), or a directory with a config.json.
    """
    from prfaas.model.silicon import Node, Points, load, silicon_profile

    not_there(out, force)
    given = {"lengths": lengths, "cached": cached, "batches": batches, "contexts": contexts}
    points = Points(**{key: numbers for key, numbers in given.items() if numbers})
    node = Node(model, system, backend, backend_version, tp, pp, attention_dp, moe_tp, moe_ep)
    said = silicon_profile(node, load(node), points, name or out.stem, date.today())
    click.echo(f"prefill: {said.prefill.note}\ndecode: {said.decode.note}", err=True)
    write(said, out)


@command.command("measure")
@click.argument("url")
@click.option("--out", type=FilePath(), default="measured.yaml", show_default=True, help="The profile.")
@click.option("--model", type=Words(MOST_NAME), help="Which model, if the endpoint serves several.")
@click.option("--api-key", type=Secret(), envvar="OPENAI_API_KEY", show_envvar=True, help="The endpoint's key.")
@click.option(
    "--lengths",
    type=Numbers(most=MOST_PROMPT, some=True),
    default="1K,2K,4K,8K,16K,32K",
    show_default=True,
    help="Uncached tokens of prompts.",
)
@click.option(
    "--cached",
    type=Numbers(most=MOST_PROMPT),
    default="8K",
    show_default=True,
    help='Cached tokens before them; "" for none.',
)
@click.option(
    "--batches",
    type=Numbers(SEQUENCES, MOST_SEQUENCES, some=True),
    default="1,2,4,8,16",
    show_default=True,
    help="Sequences that decode at once.",
)
@click.option(
    "--contexts",
    type=Numbers(most=MOST_PROMPT, some=True),
    default="1K,8K",
    show_default=True,
    help="Tokens of each of those.",
)
@click.option("--repeats", type=Whole(1, 100), default=4, show_default=True, help="Of each point.")
@click.option("--steps", type=Whole(8, 4096), default=32, show_default=True, help="Decode steps a sample.")
@click.option("--timeout", type=Seconds(1, DAY_S), default=600, show_default=True, help="Of one request, seconds.")
@click.option("--name", type=Words(), help="What it is a profile of; without it OUT's name.")
@click.option("--source", type=Words(), help="What the endpoint runs on: added to where the times come from.")
@click.option("--fresh", is_flag=True, help="Forget what an interrupted run measured.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def measure(
    url: str,
    out: Path,
    model: str | None,
    api_key: str | None,
    lengths: tuple[int, ...],
    cached: tuple[int, ...],
    batches: tuple[int, ...],
    contexts: tuple[int, ...],
    repeats: int,
    steps: int,
    timeout: float,
    name: str | None,
    source: str | None,
    fresh: bool,
    force: bool,
) -> None:
    """Measure the node behind the OpenAI endpoint URL, which should have nothing else to do.

    Prompts grow until the endpoint takes no more; each is new to its caches. Interrupted or failed, the same command
    goes on from where it was.
    """
    from prfaas.cli.profilemeasure import Asked, finish, measured, ready
    from prfaas.measure.samples import Settings

    not_there(out, force)
    product_at_most(MOST_AT_ONCE, batches, contexts, "--batches, --contexts")
    settings = Settings(
        lengths=lengths, cached=cached, batches=batches, contexts=contexts, repeats=repeats, steps=steps
    )
    asked = Asked(url, out, model, api_key, settings, timeout, name, source, fresh)
    ready(asked)
    write(measured(asked), out)
    finish(asked)


def found(profile: str) -> ProfileFile:
    """The built-in `profile`, or that of a file. Raises ConfigError."""
    if profile not in built_in() and (Path(profile).suffix in (".yaml", ".yml", ".json") or is_there(profile)):
        return read_profile_file(FilePath().convert(profile, None, None))
    return load_profile_file(profile)


def write(said: ProfileFile, out: Path) -> None:
    """Write `said`, whole or not at all, and say so."""
    write_profile_file(said, out)
    points = f"{len(said.prefill.points)} prefill and {len(said.decode.points)} decode points"
    click.echo(f"{out}: {points}, {said.prefill.basis}")
