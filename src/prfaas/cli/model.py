"""`prfaas model`: what a model's KV cache is made of and weighs."""

from __future__ import annotations

import click
import msgspec

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError
from prfaas.model.hf.groups import ATTENTION, MLA, STATE, Group, bytes_per_token, groups_of, state_bytes
from prfaas.model.hf.lengths import length_text, parse_lengths
from prfaas.model.hf.load import known_models, load_layout
from prfaas.model.hf.report import report
from prfaas.model.hf.taken import KV_DTYPES

CONVENTION = (
    "As vLLM and SGLang keep it, blocks not rounded up: MLA's latent, of a window the rows that the next token sees,\n"
    "of a convolution of K taps the last K - 1 inputs, recurrent states in float32 unless the config says otherwise."
)


@click.command("model")
@click.argument("config", required=False)
@click.option("--lengths", default="1K,8K,32K,128K", show_default=True, help="Tokens to weigh it at; K is 1024.")
@click.option("--kv-dtype", type=click.Choice(list(KV_DTYPES)), help="Rows of attention and MLA; default: the model's.")
@click.option("--json", "json_", is_flag=True, help="JSON; its schema: `prfaas schema model`.")
@click.option("--list", "list_", is_flag=True, help="Show the known names instead.")
def command(config: str | None, lengths: str, kv_dtype: str | None, json_: bool, list_: bool) -> None:
    """What the KV cache of CONFIG is made of and weighs: a Hugging Face config.json, a directory with one, or a known
    name."""
    if list_:
        for name in known_models():
            click.echo(name)
        return
    if not config:
        raise ConfigError("CONFIG: got nothing; expected a config.json, a directory with one, or a name (see --list)")
    asked = parse_lengths(lengths)
    layout = load_layout(config, kv_dtype)
    if json_:
        click.echo(msgspec.json.format(msgspec.json.encode(report(layout, asked)), indent=2).decode())
        return
    click.echo(f"{config}: KV cache of one sequence\n")
    for line in _table(layout):
        click.echo(line)
    click.echo(f"\n{bytes_per_token(layout):,} bytes a token, {state_bytes(layout):,} bytes of states")
    for length in asked:
        click.echo(f"  {length_text(length):>8}  {layout.bytes_at(length) / (1 << 20):>12,.1f} MiB")
    click.echo(f"\n{CONVENTION}")


def _table(layout: KVLayout) -> list[str]:
    """Rows of groups, under a head, in columns as wide as they need."""
    rows = [("kind", "layers", "a layer keeps", "dtype", "bytes, all layers")]
    for group in groups_of(layout):
        dtypes = sorted({part.dtype for part in group.parts})
        if len(dtypes) == 1:
            rows.append((group.kind, str(len(group.layers)), _shapes(group), dtypes[0], _weight(group)))
            continue
        for at, dtype in enumerate(dtypes):
            some = Group(group.kind, group.layers, tuple(part for part in group.parts if part.dtype == dtype))
            first = (group.kind, str(len(group.layers))) if at == 0 else ("", "")
            rows.append((*first, _shapes(some), dtype, _weight(some)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _shapes(group: Group) -> str:
    """`k 8 x 128, v 8 x 128`."""
    shown = [f"{part.name} {' x '.join(map(str, part.shape))}" for part in group.parts]
    same = {(part.shape, part.dtype) for part in group.parts}
    if len(group.parts) > 1 and len(same) == 1:
        names = ", ".join(part.name for part in group.parts)
        shown = [f"{names} {' x '.join(map(str, group.parts[0].shape))} each"]
    return ", ".join(shown)


def _weight(group: Group) -> str:
    if group.kind == STATE:
        return f"{group.state_bytes:,} in all"
    if group.kind in (ATTENTION, MLA):
        return f"{group.bytes_per_token:,} a token"
    return f"{group.bytes_per_token:,} a token, the last {group.window:,}"
