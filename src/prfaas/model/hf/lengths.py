"""Lengths in tokens as people write them: `1K,8K,32K` (K is 1024, M is 1024 K).

It knows the text; it does not know what is asked at these lengths.
"""

from __future__ import annotations

import re

from prfaas.core.errors import ConfigError

MOST = 1 << 30
_TEXT = re.compile(r"(\d{1,10})([KkMm]?)", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def parse_lengths(text: str) -> tuple[int, ...]:
    """The lengths in `text`, as they come, each once. Raises ConfigError."""
    found: list[int] = []
    for word in text.split(","):
        match = _TEXT.fullmatch(word.strip())
        length = int(match[1]) * _UNITS[match[2].lower()] if match else 0
        if not 1 <= length <= MOST:
            raise ConfigError(
                f"lengths: got {word.strip()!r}; expected tokens such as 1K,8K,32768 (K is 1024), at most {MOST >> 20}M"
            )
        if length not in found:
            found.append(length)
    return tuple(found)


def length_text(length: int) -> str:
    """`32768` -> "32K"; what is no whole number of K stays as it is."""
    if length % (1 << 20) == 0:
        return f"{length >> 20}M"
    return f"{length >> 10}K" if length % (1 << 10) == 0 else str(length)
