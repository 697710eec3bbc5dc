"""`prfaas profile`: show, make and measure profiles: how long hardware takes. It computes nothing itself."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import get_args

import click

from prfaas.cli.profileshow import listed, shown
from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import Basis, ProfileFile, built_in, load_profile_file, profile_text, read_profile_file

BASES = get_args(get_args(Basis)[0])


@click.group("profile")
def command() -> None:
    """How long hardware takes: prefill by uncached and cached tokens, decode step by batch and context."""


@command.command("list")
def list_() -> None:
    """The profiles that come with prfaas."""
    click.echo(listed([(name, load_profile_file(name)) for name in built_in()]))


@command.command("show")
@click.argument("profile")
@click.option("--lengths", default="", metavar="1K,8K,...", help="Prefill times at these lengths, too.")
@click.option("--json", "json_", is_flag=True, help="As JSON: a profile file itself (docs/schemas/profile.json).")
def show(profile: str, lengths: str, json_: bool) -> None:
    """What PROFILE, a built-in name or a file, says and where it comes from."""
    said = found(profile)
    if json_:
        from prfaas.model.profileschema import profile_json

        click.echo(profile_json(said), nl=False)
        return
    click.echo(shown(said, tokens(lengths, "--lengths")))


@command.command("csv")
@click.argument("inputs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="IN...")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--source", required=True, help="Where the times come from.")
@click.option("--name", help="What it is a profile of; without it OUT's name.")
@click.option("--date", "made", type=click.DateTime(["%Y-%m-%d"]), help="When they were measured; without it today.")
@click.option("--basis", type=click.Choice(BASES), default="measured", show_default=True, help="How they came about.")
@click.option("--note", default="", help="What else there is to know.")
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

    not_there(out, force)
    said = read_csv(
        inputs, name=name or out.stem, source=source, made=made.date() if made else date.today(), basis=basis, note=note
    )
    write(said, out)


@command.command("aiconfigurator")
@click.argument("model")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--system", required=True, help="The accelerator, such as h200_sxm.")
@click.option("--backend", default="sglang", show_default=True, help="sglang, vllm or trtllm.")
@click.option("--backend-version", help="Of its data; without it the newest whole ones.")
@click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor parallel.")
@click.option("--pp", type=click.IntRange(1), default=1, show_default=True, help="Pipeline parallel.")
@click.option("--attention-dp", type=click.IntRange(1), default=1, show_default=True, help="Attention data parallel.")
@click.option("--moe-tp", type=click.IntRange(1), default=1, show_default=True, help="Experts, tensor parallel.")
@click.option("--moe-ep", type=click.IntRange(1), default=1, show_default=True, help="Experts, expert parallel.")
@click.option("--lengths", default="", help="Uncached tokens; without it 256 to 128K.")
@click.option("--cached", default="", help="Cached tokens before them; without it 8K, 32K, 128K.")
@click.option("--batches", default="", help="Sequences that decode at once; without it 1 to 256.")
@click.option("--contexts", default="", help="Tokens of each of those; without it 1K to 128K.")
@click.option("--name", help="What it is a profile of; without it OUT's name.")
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
    lengths: str,
    cached: str,
    batches: str,
    contexts: str,
    name: str | None,
    force: bool,
) -> None:
    """Make the profile file OUT from kernels measured on real accelerators, by the package aiconfigurator-core.

    MODEL is a name that it knows (MiniMaxAI/MiniMax-M2.5), or a directory with a config.json.
    """
    from prfaas.model.silicon import Node, Points, load, silicon_profile

    not_there(out, force)
    given = {"lengths": lengths, "cached": cached, "batches": batches, "contexts": contexts}
    points = Points(**{key: tokens(text, f"--{key}") for key, text in given.items() if text})
    node = Node(model, system, backend, backend_version, tp, pp, attention_dp, moe_tp, moe_ep)
    said = silicon_profile(node, load(node), points, name or out.stem, date.today())
    click.echo(f"prefill: {said.prefill.note}\ndecode: {said.decode.note}", err=True)
    write(said, out)


@command.command("measure")
@click.argument("url")
@click.option("--out", type=click.Path(path_type=Path), default="measured.yaml", show_default=True, help="The profile.")
@click.option("--model", help="Which model, if the endpoint serves several.")
@click.option("--api-key", envvar="OPENAI_API_KEY", show_envvar=True, help="The endpoint's key.")
@click.option("--lengths", default="1K,2K,4K,8K,16K,32K", show_default=True, help="Uncached tokens of prompts.")
@click.option("--cached", default="8K", show_default=True, help='Cached tokens before them; "" for none.')
@click.option("--batches", default="1,2,4,8,16", show_default=True, help="Sequences that decode at once.")
@click.option("--contexts", default="1K,8K", show_default=True, help="Tokens of each of those.")
@click.option("--repeats", type=click.IntRange(1, 100), default=4, show_default=True, help="Of each point.")
@click.option("--steps", type=click.IntRange(8, 4096), default=32, show_default=True, help="Decode steps a sample.")
@click.option("--timeout", type=click.FloatRange(1), default=600, show_default=True, help="Of one request, seconds.")
@click.option("--name", help="What it is a profile of; without it OUT's name.")
@click.option("--source", help="What the endpoint runs on: added to where the times come from.")
@click.option("--fresh", is_flag=True, help="Forget what an interrupted run measured.")
@click.option("--force", is_flag=True, help="Replace OUT if it is there.")
def measure(
    url: str,
    out: Path,
    model: str | None,
    api_key: str | None,
    lengths: str,
    cached: str,
    batches: str,
    contexts: str,
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
    from prfaas.cli.profilemeasure import Asked, finish, measured
    from prfaas.measure.samples import Settings

    not_there(out, force)
    settings = Settings(
        lengths=needed(lengths, "--lengths"),
        cached=tuple(tokens(cached, "--cached")),
        batches=needed(batches, "--batches"),
        contexts=needed(contexts, "--contexts"),
        repeats=repeats,
        steps=steps,
    )
    asked = Asked(url, out, model, api_key, settings, timeout, name, source, fresh)
    write(measured(asked), out)
    finish(asked)


def found(profile: str) -> ProfileFile:
    """The built-in `profile`, or that of a file. Raises ConfigError."""
    if profile not in built_in() and (Path(profile).suffix in (".yaml", ".yml", ".json") or Path(profile).exists()):
        return read_profile_file(Path(profile))
    return load_profile_file(profile)


def not_there(out: Path, force: bool) -> None:
    """Raises ConfigError if `out` is a file that must not be replaced, or cannot be written."""
    if out.exists() and not force:
        raise ConfigError(f"{out}: is there already; expected a new file, or --force")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: {out.parent} is no directory; expected one that exists")


def write(said: ProfileFile, out: Path) -> None:
    """Write `said`, whole or not at all, and say so."""
    part = out.with_name(out.name + ".part")
    try:
        part.write_text(profile_text(said), encoding="utf-8")
        part.replace(out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None
    points = f"{len(said.prefill.points)} prefill and {len(said.decode.points)} decode points"
    click.echo(f"{out}: {points}, {said.prefill.basis}")


def tokens(text: str, option: str) -> list[int]:
    """`1K,8K,32768` as rising numbers, K being 1024; of an empty text none. Raises ConfigError."""
    from prfaas.model.hf.lengths import parse_lengths

    try:
        return sorted(parse_lengths(text)) if text.strip() else []
    except ConfigError as error:
        raise ConfigError(f"{option}: {str(error).removeprefix('lengths: ')}") from None


def needed(text: str, option: str) -> tuple[int, ...]:
    """`tokens`, at least one."""
    found = tuple(tokens(text, option))
    if not found:
        raise ConfigError(f"{option}: got nothing; expected numbers such as 1K,8K,32768")
    return found
