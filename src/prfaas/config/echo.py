"""What others wrote, echoed in an error: on one line, and short. It knows text, not what it is about."""

from __future__ import annotations

import re

MOST = 80
"""Characters of one value."""
MOST_LINE = 300
"""Of what a server says."""

_LONG = re.compile(r"""(?<!\w)'[^']*'|(?<!\w)"[^"]*"|\S{81,}""")
"""A quoted text (in pairs, so that nothing between two of them is taken for one), or a word that is too long."""


def cut(text: str, most: int = MOST) -> str:
    """`text`, its end left out where it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown(text: str) -> str:
    """`text` in quotes, cut; what is not printable is escaped."""
    return repr(cut(text))


def one_line(text: str, most: int = MOST_LINE) -> str:
    """`text` without line breaks and control characters (a terminal would obey them), cut."""
    return cut(" ".join("".join(c if c.isprintable() else " " for c in text).split()), most)


def elided(what: str) -> str:
    """The error `what`, each value in it cut."""
    return _LONG.sub(lambda found: _cut_quoted(found[0]), what)


def _cut_quoted(text: str) -> str:
    return text if len(text) <= MOST + 2 else text[: MOST - 3] + "..." + (text[0] if text[0] in "'\"" else "")
