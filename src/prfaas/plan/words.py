"""Numbers as people read them, and tables of them. It knows text only."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

STAGES = {
    "prfaas": "PrfaaS prefill",
    "link": "the link",
    "pd_p": "PD prefill",
    "pd_d": "PD decode",
}
"""What may bind, in words."""


def tokens(count: float | None) -> str:
    """`19.6K`, `-` for None."""
    if count is None:
        return "-"
    return f"{count / 1000:.1f}K" if count >= 1000 else f"{count:.0f}"


def number(value: float | None, digits: int = 2) -> str:
    """With that many decimals, or as many significant digits where it is large; `-` for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:,.0f}"


def percent(share: float | None, digits: int = 0) -> str:
    """`49 %`, `-` for None."""
    return "-" if share is None else f"{share * 100:.{digits}f} %"


def change(ratio: float) -> str:
    """`+54.1 %` for 1.541."""
    return f"{(ratio - 1) * 100:+.1f} %"


def bits(bps: float | None) -> str:
    """`12.3 Gbps`, `-` for None."""
    if bps is None:
        return "-"
    for size, unit in ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps")):
        if bps >= size:
            return f"{bps / size:.3g} {unit}"
    return f"{bps:.3g} bps"


def table(rows: Sequence[Sequence[str]], indent: str = "  ") -> str:
    """Columns, the first flush left, the others flush right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join(
        indent
        + "  ".join(
            cell.ljust(w) if not at else cell.rjust(w) for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def wrapped(text: str) -> str:
    """A paragraph with a dash before it, 118 columns wide."""
    return textwrap.fill(text, 118, initial_indent="  - ", subsequent_indent="    ", break_on_hyphens=False)
