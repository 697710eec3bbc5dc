"""A profile's points from CSV: one file with both tables, or one for each.

    kind,uncached,cached,batch,context,time        uncached,cached,time        batch,context,time
    prefill,1024,0,,,440ms                         1024,0,440ms                20,4096,25ms
    decode,,,20,4096,25ms

`kind` may be left out where a file has only one table's columns; `cached` (0) and `context` (any) may be left out. A
time has a unit, or its column is `time_s`, `time_ms`, `time_us` or `time_ns`. It knows columns and rows; what
contradicts what is `profilefile`'s. Every fault is one line: `FILE:LINE: column: got ...; expected ...`.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path

import msgspec

from prfaas.config.complaint import convert, explain
from prfaas.config.echo import elided, shown
from prfaas.config.textfile import read_text
from prfaas.config.units import Timeout
from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import (
    Basis,
    DecodePoint,
    DecodeTable,
    PrefillPoint,
    PrefillTable,
    ProfileFile,
    contradictions,
)

MAX_BYTES = 4 << 20
TIMES = ("time", "time_s", "time_ms", "time_us", "time_ns")
COLUMNS: dict[str, tuple[str, ...]] = {"prefill": ("uncached", "cached"), "decode": ("batch", "context")}
"""What a row of each kind has, besides its time: the first is needed."""
WHAT = "a CSV file with the columns kind, uncached, cached, batch, context, time"


@dataclass(frozen=True, slots=True)
class Line:
    """One row and where it stands: its cells by column, without those that are empty."""

    path: Path
    number: int
    cells: dict[str, str]

    def error(self, what: str, column: str = "") -> ConfigError:
        """`FILE:LINE: column: what`."""
        return ConfigError(f"{self.path}:{self.number}: {f'{column}: ' if column else ''}{what}")


@dataclass(slots=True)
class Read:
    """Points so far, and the row that each came from."""

    prefills: list[PrefillPoint] = field(default_factory=list)
    decodes: list[DecodePoint] = field(default_factory=list)
    rows: dict[str, list[Line]] = field(default_factory=lambda: {"prefill": [], "decode": []})

    def add(self, kind: str, line: Line) -> None:
        """One row. Raises ConfigError."""
        shape = PrefillPoint if kind == "prefill" else DecodePoint
        value: dict[str, object] = {"time": _time(line)}
        for column in COLUMNS[kind]:
            if column in line.cells:
                value[column] = _whole(line, column)
        try:
            point = convert(value, shape)
        except msgspec.ValidationError as error:
            where, what = explain(error, value, shape)
            raise line.error(elided(what), str(where[0]) if where else "") from None
        (self.prefills if kind == "prefill" else self.decodes).append(point)
        self.rows[kind].append(line)


def read_csv(paths: Sequence[Path], *, name: str, source: str, made: date, basis: Basis, note: str = "") -> ProfileFile:
    """The profile that the rows of `paths` make. Raises ConfigError with the row and what was expected."""
    read = Read()
    for path in paths:
        for kind, line in _lines(path):
            read.add(kind, line)
    where = ", ".join(map(str, paths))
    if not read.prefills:
        raise ConfigError(f"{where}: no prefill row; expected one with uncached and time")
    if not read.decodes:
        raise ConfigError(f"{where}: no decode row; expected one with batch and time, here or in a second file")
    said = ProfileFile(
        name=name,
        source=source,
        date=made,
        prefill=PrefillTable(basis=basis, note=note, points=tuple(read.prefills)),
        decode=DecodeTable(basis=basis, note=note, points=tuple(read.decodes)),
    )
    for (table, _, *rest), what in contradictions(said):
        rows = read.rows[str(table)]
        raise rows[int(rest[0])].error(what, str(rest[1]) if rest[1:] else "") if rest else rows[0].error(what)
    return said


def _lines(path: Path) -> Iterator[tuple[str, Line]]:
    """Each row, and whether it is of prefill or decode."""
    text = read_text(path, WHAT, MAX_BYTES)
    reader = csv.reader(text.splitlines(), strict=True, skipinitialspace=True)
    names: list[str] = []
    try:
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not names:
                names = _header(Line(path, reader.line_num, {}), cells)
                continue
            line = Line(path, reader.line_num, {n: c for n, c in zip(names, cells, strict=False) if c})
            if len(cells) != len(names):
                raise line.error(f"got {len(cells)} cells; expected {len(names)}: {', '.join(names)}")
            yield _kind(line, names), line
    except csv.Error as error:
        raise ConfigError(f"{path}:{reader.line_num}: not valid CSV: {error}") from None
    if not names:
        raise ConfigError(f"{path}:1: the file is empty; expected {WHAT}")


def _header(line: Line, names: list[str]) -> list[str]:
    names = [name.lower() for name in names]
    known = ("kind", *COLUMNS["prefill"], *COLUMNS["decode"], *TIMES)
    for name in names:
        if name not in known:
            raise line.error(f"got column {shown(name)}; expected some of {', '.join(known)}")
        if names.count(name) > 1:
            raise line.error(f"column {name} is there twice; expected it once")
    if sum(name in TIMES for name in names) != 1:
        raise line.error(f"got columns {', '.join(names)}; expected one of {', '.join(TIMES)} among them")
    if "uncached" not in names and "batch" not in names:
        raise line.error(f"got columns {', '.join(names)}; expected uncached (prefill) or batch (decode) among them")
    return names


def _kind(line: Line, names: list[str]) -> str:
    """What a row is of: its `kind`, or the one whose column it fills."""
    said = line.cells.get("kind", "").lower()
    if said:
        if said not in COLUMNS:
            raise line.error(f"got {shown(line.cells['kind'])}; expected prefill or decode", "kind")
        kind = said
    elif "kind" in names:
        raise line.error("got nothing; expected prefill or decode", "kind")
    else:
        filled = [kind for kind, (first, _) in COLUMNS.items() if first in line.cells]
        if len(filled) != 1:
            raise line.error("expected a number in one of uncached (prefill) and batch (decode)")
        (kind,) = filled
    for other, columns in COLUMNS.items():
        for column in columns:
            if other != kind and column in line.cells:
                raise line.error(f"got {shown(line.cells[column])} in a row of {kind}; expected nothing", column)
    if COLUMNS[kind][0] not in line.cells:
        raise line.error("got nothing; expected a whole number", COLUMNS[kind][0])
    return kind


def _whole(line: Line, column: str) -> int:
    text = line.cells[column]
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise line.error(f"got {shown(text)}; expected a whole number", column)
    return int(text)


def _time(line: Line) -> str:
    """As a profile file has it: with its unit."""
    column = next((name for name in TIMES if name in line.cells), None)
    if column is None:
        raise line.error("no time; expected one", "time")
    text = line.cells[column]
    if column == "time":
        try:
            return Timeout.parse(text).text()
        except ValueError as error:
            raise line.error(f"{elided(str(error))} (or a column time_s, time_ms, ...)", column) from None
    unit = column.removeprefix("time_")
    try:
        amount = Decimal(text)
        # Far beyond any bound is as good as just beyond, and makes no number of a million digits.
        ns = Timeout(int((min(amount, Decimal(1 << 63)) * Timeout.UNITS[unit]).to_integral_value()))
    except (ArithmeticError, ValueError):
        raise line.error(f"got {shown(text)}; expected a number of {unit}", column) from None
    if not 0 < ns <= 1 << 62:
        raise line.error(f"got {shown(text)}; expected more than zero, and no more than a century", column)
    return ns.text()
