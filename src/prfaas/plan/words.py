"""Numbers as people read them, and tables of them. It knows text only."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from math import floor, log10

STAGES = {
    "prfaas": "PrfaaS prefill",
    "link": "the link",
    "pd_p": "PD prefill",
    "pd_d": "PD decode",
}
"""What may bind, in words."""


def tokens(count: float | None) -> str:
    """`19.6K`, thousands; `-` for None."""
    if count is None:
        return "-"
    return f"{count / 1000:.1f}K" if count >= 1000 else f"{count:.0f}"


def number(value: float | None, digits: int = 2) -> str:
    """With that many decimals, more where it is so small that two digits would not be seen, none where it is large; `-`
    for None."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if not value or abs(value) >= 0.1:
        return f"{value + 0.0:.{digits}f}"
    return f"{value:.{max(digits, 1 - floor(log10(abs(value))))}f}" if abs(value) >= 1e-9 else f"{value:.2g}"


def percent(share: float | None, digits: int = 0) -> str:
    """`49 %`, `-` for None."""
    return "-" if share is None else f"{round(share * 100, digits) + 0.0:.{digits}f} %"


def change(ratio: float) -> str:
    """`+54.1 %` for 1.541, `43x` for 43."""
    return f"{ratio:,.3g}x" if 10 <= ratio < 1000 else f"{ratio:,.0f}x" if ratio >= 10 else _signed(ratio - 1)


def _signed(part: float) -> str:
    return f"{round(part * 100, 1) + 0.0:+.1f} %"


def times(load: float) -> str:
    """`86 % of`, `43 times` for 43."""
    return f"{number(load, 0)} times" if load >= 10 else f"{percent(load)} of"


def count(number: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def bits(bps: float | None) -> str:
    """`12.3 Gbps`, `-` for None."""
    if bps is None:
        return "-"
    for size, unit in ((1e12, "Tbps"), (1e9, "Gbps"), (1e6, "Mbps"), (1e3, "Kbps")):
        if bps >= size * 0.9995:
            return f"{_three(bps / size)} {unit}"
    return f"{_three(bps)} bps"


def _three(value: float) -> str:
    """Three digits, or all of a whole number."""
    return f"{value:.3g}" if value < 999.5 else f"{value:.0f}"


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
