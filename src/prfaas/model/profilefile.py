"""Profile files: YAML or JSON, and the ones that come with prfaas.

    name: h200-8                       # what it is a profile of: one node
    source: our own bench, 8x H200     # where it comes from
    date: 2026-04-30
    prefill:
      basis: measured                  # or derived, or modelled
      points:                          # `cached`, tokens before the uncached ones that need not be computed: 0
        - {uncached: 1024, time: 440ms}
        - {uncached: 1024, cached: 8192, time: 450ms}
    decode:
      basis: measured
      points:                          # `context`, tokens a sequence; left out: the time holds for any
        - {batch: 20, context: 4096, time: 25ms}

It knows the file and what makes it wrong; how times lie between points is `profile`'s. Other sources of points make the
same rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta, Struct, field

from prfaas.config.complaint import convert, explain
from prfaas.config.document import Where, read_document
from prfaas.config.echo import elided, shown
from prfaas.config.units import Duration, Timeout
from prfaas.core.errors import ConfigError
from prfaas.model.profile import Curve, Profile

DIRECTORY = Path(__file__).parent / "profiles"
Basis = Annotated[
    Literal["measured", "derived", "modelled"],
    Meta(
        description="How the times came about: `measured` on the hardware itself, `derived` from published figures, or "
        "`modelled` by a program that predicts."
    ),
]
Note = Annotated[str, Meta(description="What else there is to know of these times.")]
Text = Annotated[str, Meta(min_length=1)]
Uncached = Annotated[int, Meta(ge=1, le=1 << 30, description="Tokens that are computed.")]
Cached = Annotated[int, Meta(ge=0, le=1 << 30, description="Tokens before them that need not be computed.")]
BatchSize = Annotated[int, Meta(ge=1, le=1 << 20, description="Sequences that decode together.")]
Context = Annotated[
    int, Meta(ge=1, le=1 << 30, description="Tokens of each sequence; left out: the time holds for any.")
]
Time = Annotated[Timeout, Meta(description="How long it took: a prefill, or one decode step.")]


class PrefillPoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uncached` tokens after `cached` ones took `time`."""

    uncached: Uncached
    cached: Cached = 0
    time_ns: Time = field(name="time")


class DecodePoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of `batch` sequences of `context` tokens each took `time`."""

    batch: BatchSize
    context: Context | None = None
    time_ns: Time = field(name="time")


class PrefillTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`basis`: how the points came about; `note`: more of it."""

    basis: Basis
    note: Note = ""
    points: Annotated[
        tuple[PrefillPoint, ...],
        Meta(min_length=1, description="In any order; times do not fall as tokens are more. One without `cached`."),
    ]


class DecodeTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`basis`: how the points came about; `note`: more of it."""

    basis: Basis
    note: Note = ""
    points: Annotated[
        tuple[DecodePoint, ...],
        Meta(min_length=1, description="In any order; times fall neither with the batch nor with the context."),
    ]


class ProfileFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile file says."""

    name: Annotated[Text, Meta(description="What it is a profile of: one node.")]
    source: Annotated[Text, Meta(description="Where the times come from.")]
    date: Annotated[date, Meta(description="When they were measured, published or made: YYYY-MM-DD.")]
    prefill: Annotated[PrefillTable, Meta(description="How long a prompt takes, alone on the node.")]
    decode: Annotated[DecodeTable, Meta(description="How long a decode step takes.")]


def built_in() -> tuple[str, ...]:
    """Names of the profiles that come with prfaas."""
    return tuple(sorted(path.stem for path in DIRECTORY.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """The built-in profile `name`, or that of a file: a path with a slash. Raises ConfigError with line and row."""
    return profile_of(load_profile_file(name))


def load_profile_file(name: str) -> ProfileFile:
    """What `load_profile` makes its profile of. Raises ConfigError with line and row."""
    if "/" in name:
        return read_profile_file(Path(name))
    if name not in built_in():
        raise ConfigError(f"profile {shown(name)}: expected one of {', '.join(built_in())}, or a path with a slash")
    return read_profile_file(DIRECTORY / f"{name}.yaml")


def read_profile(path: Path) -> Profile:
    """The profile in `path`. Raises ConfigError with line, row and what was expected."""
    return profile_of(read_profile_file(path))


def read_profile_file(path: Path) -> ProfileFile:
    """What the file in `path` says, free of contradictions. Raises ConfigError with line, row and what was expected."""
    try:
        return _read(path)
    except ConfigError as error:
        before = str(path)  # which is never cut
        raise ConfigError(before + elided(str(error).removeprefix(before))) from None


def _read(path: Path) -> ProfileFile:
    document = read_document(path, "a profile")
    try:
        said: ProfileFile = convert(document.value, ProfileFile)
    except msgspec.ValidationError as error:
        raise document.error(*explain(error, document.value, ProfileFile)) from None
    for where, what in contradictions(said):
        raise document.error(where, what)
    return said


def profile_text(said: ProfileFile) -> str:
    """`said` as YAML, a row a line, for `read_profile_file`."""
    lines = [f"name: {_quoted(said.name)}", f"source: {_quoted(said.source)}", f"date: {said.date.isoformat()}"]
    tables: tuple[tuple[str, PrefillTable | DecodeTable], ...] = (("prefill", said.prefill), ("decode", said.decode))
    for key, table in tables:
        lines += [f"{key}:", f"  basis: {table.basis}", *([f"  note: {_quoted(table.note)}"] if table.note else [])]
        lines += ["  points:", *(f"    - {{{_row(point)}}}" for point in table.points)]
    return "\n".join(lines) + "\n"


def _row(point: PrefillPoint | DecodePoint) -> str:
    match point:
        case PrefillPoint(uncached=uncached, cached=cached, time_ns=ns):
            return f"uncached: {uncached}, " + (f"cached: {cached}, " if cached else "") + f"time: {ns.text()}"
        case DecodePoint(batch=batch, context=None, time_ns=ns):
            return f"batch: {batch}, time: {ns.text()}"
        case DecodePoint(batch=batch, context=context, time_ns=ns):
            return f"batch: {batch}, context: {context}, time: {ns.text()}"


def _quoted(text: str) -> str:
    """As YAML, on one line."""
    return str(yaml.safe_dump(text, default_style='"', allow_unicode=True, width=1 << 30)).strip()


def profile_of(said: ProfileFile) -> Profile:
    """The profile that the points, which are free of contradictions, make."""
    prefills: dict[int, list[tuple[int, int]]] = {}
    for row in said.prefill.points:
        prefills.setdefault(row.cached, []).append((row.uncached, int(row.time_ns)))
    decodes: dict[int, Curve | int] = {}
    for batch in sorted({row.batch for row in said.decode.points}):
        rows = [row for row in said.decode.points if row.batch == batch]
        if rows[0].context is None:
            decodes[batch] = int(rows[0].time_ns)
        else:
            decodes[batch] = _flat_ended(sorted((row.context or 0, int(row.time_ns)) for row in rows))
    return Profile(
        said.name,
        said.source,
        said.date,
        tuple((cached, Curve(sorted(points))) for cached, points in sorted(prefills.items())),
        tuple(decodes.items()),
    )


def _flat_ended(points: list[tuple[int, int]]) -> Curve:
    """A step never gets faster than the fastest measured one: level below the first context."""
    x, ns = points[0]
    return Curve([(x - 1, ns), *points])


def contradictions(said: ProfileFile) -> Iterator[tuple[Where, str]]:
    """Where the points contradict each other, and `got ...; expected ...`."""
    if all(row.cached for row in said.prefill.points):
        yield ("prefill", "points"), "every row has cached tokens; expected rows without, to begin from"
    yield from _falling("prefill", "uncached", [(r.cached, r.uncached, r.time_ns) for r in said.prefill.points])
    rows = said.decode.points
    for at, row in enumerate(rows):
        if row.context is None and len([other for other in rows if other.batch == row.batch]) > 1:
            yield (
                ("decode", "points", at),
                f"batch {row.batch} has a row for any context and another; expected `context` in each, or one row",
            )
    yield from _falling("decode", "context", [(r.batch, r.context or 0, r.time_ns) for r in rows])
    steps = sorted(((r.context or 0, r.batch, r.time_ns, at) for at, r in enumerate(rows)), key=lambda step: step[:2])
    for (context, batch, ns, _), (same, more, less, at) in pairwise(steps):
        if context == same and less < ns:
            yield (
                ("decode", "points", at, "time"),
                f"got {less.text()} at batch {more}, less than {ns.text()} at batch {batch}; expected no less",
            )


def _falling(table: str, over: str, rows: Sequence[tuple[int, int, Duration]]) -> Iterator[tuple[Where, str]]:
    """Rows of one group in which time falls as `over` grows, or that say two things of one point."""
    order = sorted(range(len(rows)), key=lambda at: rows[at][:2])
    for before, at in pairwise(order):
        (group, x, ns), (same, y, less) = rows[before], rows[at]
        if group != same:
            continue
        if x == y:
            yield (table, "points", at), f"a second row for the same point; expected one for {over} {y}"
        if less < ns:
            yield (
                (table, "points", at, "time"),
                f"got {less.text()} at {over} {y}, less than {ns.text()} at {x}; expected times that do not fall",
            )
