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
from msgspec import Meta, Struct, field

from prfaas.config.complaint import convert, explain
from prfaas.config.document import Where, read_document
from prfaas.config.units import Duration, Timeout
from prfaas.core.errors import ConfigError
from prfaas.model.profile import Curve, Profile

DIRECTORY = Path(__file__).parent / "profiles"
Basis = Literal["measured", "derived", "modelled"]
Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
Text = Annotated[str, Meta(min_length=1)]


class PrefillPoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`uncached` tokens after `cached` ones took `time`."""

    uncached: Tokens
    cached: Annotated[int, Meta(ge=0, le=1 << 30)] = 0
    time_ns: Timeout = field(name="time")


class DecodePoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step of `batch` sequences of `context` tokens each took `time`."""

    batch: Annotated[int, Meta(ge=1, le=1 << 20)]
    context: Tokens | None = None
    time_ns: Timeout = field(name="time")


class PrefillTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`basis`: how the points came about; `note`: more of it."""

    basis: Basis
    note: str = ""
    points: Annotated[tuple[PrefillPoint, ...], Meta(min_length=1)]


class DecodeTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`basis`: how the points came about; `note`: more of it."""

    basis: Basis
    note: str = ""
    points: Annotated[tuple[DecodePoint, ...], Meta(min_length=1)]


class ProfileFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a profile file says."""

    name: Text
    source: Text
    date: date
    prefill: PrefillTable
    decode: DecodeTable


def built_in() -> tuple[str, ...]:
    """Names of the profiles that come with prfaas."""
    return tuple(sorted(path.stem for path in DIRECTORY.glob("*.yaml")))


def load_profile(name: str) -> Profile:
    """The built-in profile `name`, or that of a file: a path with a slash. Raises ConfigError with line and row."""
    if "/" in name:
        return read_profile(Path(name))
    if name not in built_in():
        raise ConfigError(f"profile {name!r}: expected one of {', '.join(built_in())}, or a path with a slash")
    return read_profile(DIRECTORY / f"{name}.yaml")


def read_profile(path: Path) -> Profile:
    """The profile in `path`. Raises ConfigError with line, row and what was expected."""
    document = read_document(path, "a profile")
    try:
        said: ProfileFile = convert(document.value, ProfileFile)
    except msgspec.ValidationError as error:
        raise document.error(*explain(error, document.value, ProfileFile)) from None
    for where, what in _problems(said):
        raise document.error(where, what)
    return profile_of(said)


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


def _problems(said: ProfileFile) -> Iterator[tuple[Where, str]]:
    if all(row.cached for row in said.prefill.points):
        yield ("prefill", "points"), "every row has cached tokens; expected rows without, to begin from"
    yield from _falling("prefill", "uncached", [(r.cached, r.uncached, r.time_ns) for r in said.prefill.points])
    rows = said.decode.points
    for at, row in enumerate(rows):
        whole = [other for other in rows if other.batch == row.batch and other.context is None]
        if whole and len([other for other in rows if other.batch == row.batch]) > 1:
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
