"""Line and bar charts as inline SVG: few kinds, no script, readable without colour.

They know numbers and names; they do not know what is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10

WIDTH, HEIGHT = 640, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 16, 40
COLOURS = ("#1b6ca8", "#c0392b", "#2e7d32", "#8e44ad", "#b7791f", "#455a64")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")

Points = Sequence[tuple[float, float]]


def lines(title: str, x_name: str, y_name: str, rows: Sequence[tuple[str, Points]]) -> str:
    """A chart of named lines."""
    points = [point for _, row in rows for point in row]
    if not points:
        return ""
    x_most = max(max(x for x, _ in points), 1e-9)
    y_most = max(max(y for _, y in points), 1e-9)
    parts = [_frame(title, x_name, y_name, x_most, y_most)]
    for at, (name, row) in enumerate(rows):
        path = " ".join(f"{_x(x, x_most):.1f},{_y(y, y_most):.1f}" for x, y in row)
        dash = f' stroke-dasharray="{DASHES[at % 6]}"' if DASHES[at % 6] else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[at % 6]}" stroke-width="1.6"{dash}/>')
        if len(rows) > 1:
            parts.append(_legend(at, name, dash))
    return _svg(title, "".join(parts))


def bars(title: str, rows: Sequence[tuple[str, float]]) -> str:
    """Named bars, each with its number."""
    if not rows:
        return ""
    most = max(max(value for _, value in rows), 1e-9)
    height = 24 * len(rows) + 8
    parts = []
    for at, (name, value) in enumerate(rows):
        y = 4 + 24 * at
        long = (WIDTH - 260) * value / most
        parts.append(
            f'<text x="150" y="{y + 15}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="158" y="{y + 3}" width="{long:.1f}" height="16" fill="{COLOURS[0]}"/>'
            f'<text x="{164 + long:.1f}" y="{y + 15}">{value:,.6g}</text>'
        )
    return _svg(title, "".join(parts), height)


def _svg(title: str, inside: str, height: int = HEIGHT) -> str:
    return (
        f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}">{inside}</svg></figure>'
    )


def _frame(title: str, x_name: str, y_name: str, x_most: float, y_most: float) -> str:
    parts = []
    for value in _ticks(y_most):
        y = _y(value, y_most)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for value in _ticks(x_most):
        x = _x(value, x_most)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_name)}</text>')
    parts.append(f'<text x="4" y="12">{escape(y_name)}</text>')
    return "".join(parts)


def _legend(at: int, name: str, dash: str) -> str:
    x = LEFT + 110 * at
    return (
        f'<line x1="{x}" x2="{x + 22}" y1="{HEIGHT - 10}" y2="{HEIGHT - 10}" stroke="{COLOURS[at % 6]}" '
        f'stroke-width="2"{dash}/><text x="{x + 27}" y="{HEIGHT - 6}">{escape(name)}</text>'
    )


def _ticks(most: float) -> list[float]:
    """Round values from 0, about five of them."""
    rough = most / 4
    unit = 10 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return [round(step * at, 12) for at in range(int(most / step * (1 + 1e-9)) + 1)]


def _x(value: float, most: float) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * value / most


def _y(value: float, most: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most
