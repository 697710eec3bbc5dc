"""Profiles as text for a terminal: tables, and what is interpolated or extrapolated. It knows no files."""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.model.profilefile import ProfileFile, profile_of


def listed(profiles: Sequence[tuple[str, ProfileFile]]) -> str:
    """One line a profile: name, bases, source."""
    rows = [(name, f"{said.prefill.basis}/{said.decode.basis}", said.source) for name, said in profiles]
    return table(("profile", "prefill/decode", "source"), rows, right=False)


def shown(said: ProfileFile, lengths: Sequence[int] = ()) -> str:
    """All of one profile; `lengths`: prompts, nothing cached, whose time is wanted too."""
    lines = [f"{said.name}: {said.source}, {said.date.isoformat()}", ""]
    lines += _title("prefill", said.prefill.basis, said.prefill.note)
    rows: list[tuple[str, ...]] = [
        (f"{point.uncached}", f"{point.cached}", seconds(point.time_ns), f"{point.uncached * 1e9 / point.time_ns:.0f}")
        for point in sorted(said.prefill.points, key=lambda point: (point.cached, point.uncached))
    ]
    lines += [table(("uncached", "cached", "time", "tokens/s"), rows), ""]
    lines += _title("decode step", said.decode.basis, said.decode.note)
    rows = [
        (
            f"{point.batch}",
            "any" if point.context is None else f"{point.context}",
            seconds(point.time_ns),
            f"{point.batch * 1e9 / point.time_ns:.0f}",
        )
        for point in sorted(said.decode.points, key=lambda point: (point.batch, point.context or 0))
    ]
    lines.append(table(("batch", "context", "step", "tokens/s"), rows))
    if lengths:
        estimates = [(length, profile_of(said).prefill(length, length)) for length in lengths]
        rows = [
            (f"{length}", seconds(found.ns), "extrapolated" if found.extrapolated else "")
            for length, found in estimates
        ]
        lines += ["", "between and beyond the points:", table(("uncached", "time", ""), rows)]
    return "\n".join(lines)


def seconds(ns: int) -> str:
    """`1.840 s`, `25.0 ms`."""
    return f"{ns / 1e9:.3f} s" if ns >= 10**9 else f"{ns / 1e6:.1f} ms" if ns >= 10**6 else f"{ns / 1e3:.1f} us"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: bool = True) -> str:
    """Columns as wide as what is in them."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = [
        "  ".join(cell.rjust(w) if right else cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        for row in (head, *rows)
    ]
    return "\n".join(line.rstrip() for line in lines)


def _title(what: str, basis: str, note: str) -> list[str]:
    return [f"{what} ({basis})" + (f": {note}" if note else "")]
