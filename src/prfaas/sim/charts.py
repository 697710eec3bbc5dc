"""Line and bar charts as inline SVG: few kinds, no script, readable without colour, in the dark and on a small screen.

They know numbers and names; they do not know what is shown. Labels of axes and names of bars have room for letters
of `LARGE` units, which small screens get; names of lines are text below the picture, since text wraps.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 30, 46
BAR = 26
LARGE = 17
LETTER = 0.62 * LARGE
"""Units that a letter takes at most, on average."""
NAMES = int(WIDTH * 0.42)
"""Units for names of bars, at most."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")
STYLE = f"""
:root {{ --c0: #1b6ca8; --c1: #c0392b; --c2: #2e7d32; --c3: #8e44ad; --c4: #96690f; --c5: #455a64 }}
@media (prefers-color-scheme: dark) {{
:root {{ --c0: #6cb2e8; --c1: #f08a7e; --c2: #7cc681; --c3: #cf9be6; --c4: #e0b45c; --c5: #a9bcc5 }}
}}
figure {{ margin: 0; min-width: 0 }} figcaption {{ font-weight: 600 }}
figure svg {{ display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif }}
figure svg text {{ fill: currentColor }} figure svg .grid {{ stroke: #8885 }} figure svg .band {{ fill: #8883 }}
figure svg .line {{ fill: none; stroke-width: 1.6 }} figure svg .bar {{ stroke: none; fill: var(--c0) }}
.legend {{ display: flex; flex-wrap: wrap; gap: 0 1.2rem; font-size: .85rem; overflow-wrap: anywhere }}
.legend svg {{ display: inline-block; width: 26px; height: 10px; margin-right: .4rem }}
{" ".join(f".c{at} {{ stroke: var(--c{at}) }}" for at in range(6))}
@media (max-width: 560px) {{ figure svg {{ font-size: {LARGE}px }} }}
"""

Points = Sequence[tuple[float, float]]


def lines(
    title: str,
    x_name: str,
    y_name: str,
    rows: Sequence[tuple[str, Points]],
    bands: Sequence[tuple[float, float]] = (),
    band_name: str = "",
    *,
    until: float = 0.0,
    counts: bool = False,
) -> str:
    """A chart of named lines; rows without points are left out. `bands` of x are shaded, and called `band_name`. The
    axis of x reaches `until` at least; `counts`: y is of whole things."""
    rows = [row for row in rows if row[1]]
    if not rows:
        return ""
    points = [point for _, row in rows for point in row]
    x_most = max(until, max(x for x, _ in points)) or 1.0
    y_ticks = _ticks(max(y for _, y in points) or 1.0, above=True, least=1.0 if counts else 0.0)
    y_most = y_ticks[-1]
    shaded = [(_x(min(low, x_most), x_most), _x(min(high, x_most), x_most)) for low, high in bands]
    tall = HEIGHT - TOP - BOTTOM
    parts = [
        f'<rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" height="{tall}" class="band"/>'
        for left, right in shaded
        if right > left
    ]
    legend = [_key('<rect width="26" height="10" class="band"/>', band_name)] if parts else []
    parts.append(_frame(x_name, y_name, x_most, y_ticks))
    for at, (name, row) in enumerate(rows):
        look = f'class="line c{at % 6}"' + (f' stroke-dasharray="{DASHES[at % 6]}"' if DASHES[at % 6] else "")
        if len(row) == 1:
            row = [row[0], (row[0][0] + x_most / 100, row[0][1])]
        path = " ".join(f"{_x(min(x, x_most), x_most):.1f},{_y(y, y_most):.1f}" for x, y in row)
        parts.append(f'<polyline points="{path}" {look}/>')
        if len(rows) > 1:
            legend.insert(at, _key(f'<path d="M0 5H26" {look}/>', name))
    return _figure(title, "".join(parts), HEIGHT, legend)


def bars(title: str, rows: Sequence[tuple[str, float]], most: float | None = None) -> str:
    """Named bars, each with its number. `most`: what the longest possible bar stands for; None: the largest value."""
    if not rows:
        return ""
    most = max([value for _, value in rows] + [most or 1e-9])
    names = min(NAMES, int(LETTER * max(len(name) for name, _ in rows)) + 8)
    numbers = LETTER * max(len(_number(value)) for _, value in rows) + 8
    parts = []
    for at, (name, value) in enumerate(rows):
        y = BAR * at
        long = (WIDTH - names - 8 - numbers) * value / most
        parts.append(
            f'<text x="{names}" y="{y + 18}" text-anchor="end">{escape(_short(name))}'
            f"<title>{escape(name)}</title></text>"
            f'<rect x="{names + 8}" y="{y + 4}" width="{max(long, 1 if value else 0):.1f}" height="18" class="bar"/>'
            f'<text x="{names + 13 + long:.1f}" y="{y + 18}">{_number(value)}</text>'
        )
    return _figure(title, "".join(parts), BAR * len(rows) + 4, [])


def _figure(title: str, inside: str, height: int, legend: Sequence[str]) -> str:
    said = f'<div class="legend">{"".join(legend)}</div>' if legend else ""
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{inside}</svg>{said}</figure>'
    )


def _key(mark: str, name: str) -> str:
    return f'<span><svg viewBox="0 0 26 10">{mark}</svg>{escape(name)}</span>'


def _frame(x_name: str, y_name: str, x_most: float, y_ticks: Sequence[float]) -> str:
    parts = []
    for value in y_ticks:
        y = _y(value, y_ticks[-1])
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    for value in _ticks(x_most):
        x = _x(value, x_most)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_tick(value)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="4" y="14">{escape(y_name)}</text>')
    return "".join(parts)


def _ticks(most: float, above: bool = False, least: float = 0.0) -> list[float]:
    """Round values from 0, three to six of them, or fewer that are `least` apart; up to `most`, or `above` it."""
    rough = most / 5 * (1 - 1e-9)
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    step = max(step, least)
    many = ceil(most / step * (1 - 1e-9)) if above else int(most / step * (1 + 1e-9))
    return [round(step * at, 12) for at in range(many + 1)]


def _tick(value: float) -> str:
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 10 * unit or (unit > 1e3 and value >= unit):
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _number(value: float) -> str:
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"


def _short(name: str) -> str:
    most = int((NAMES - 8) / LETTER)
    return name if len(name) <= most else name[: most - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _x(value: float, most: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / most


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most
