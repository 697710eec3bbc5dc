"""Option types of `prfaas profile`: a bad value is one line, `--option: got ...; expected ...`, however long it is.

They know how values are written and their bounds; they do not know what is done with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from prfaas.config.echo import shown
from prfaas.core.errors import ConfigError
from prfaas.model.hf.lengths import length_text, parse_lengths

MOST_TOKENS = 1 << 30
"""As a profile file allows."""
MOST_NUMBERS = 32
"""In one list: so that a grid of them is a file that can be read."""
MOST_TEXT = 4000
"""Characters of what is written into a profile."""
MOST_NAME = 255
"""Bytes of one name in a path."""
Parameter = click.Parameter | None
Context = click.Context | None


class Whole(click.IntRange):
    """A whole number from `least` to `most`."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(least, most)
        self.expected = f"a whole number from {least} to {most}"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """As click's. Raises ConfigError."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise wrong(param, value, self.expected) from None


class Seconds(click.FloatRange):
    """A number of seconds from `least` to `most`; neither nan nor inf."""

    def __init__(self, least: float, most: float) -> None:
        super().__init__(least, most)
        self.expected = f"seconds from {least:g} to {most:g}"

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """As click's. Raises ConfigError."""
        try:
            found = super().convert(value, param, ctx)
        except click.BadParameter:
            found = math.nan
        if not math.isfinite(found):
            raise wrong(param, value, self.expected)
        return found


class OneOf(click.Choice):  # type: ignore[type-arg]
    """One of some words."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """As click's. Raises ConfigError."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            raise wrong(param, value, f"one of {', '.join(map(str, self.choices))}") from None


class Day(click.DateTime):
    """YYYY-MM-DD."""

    def __init__(self) -> None:
        super().__init__(["%Y-%m-%d"])

    def convert(self, value: Any, param: Parameter, ctx: Context) -> datetime:
        """As click's. Raises ConfigError."""
        try:
            found: datetime = super().convert(value, param, ctx)
        except click.BadParameter:
            raise wrong(param, value, "a day such as 2026-05-01") from None
        return found


class Words(click.ParamType):  # type: ignore[type-arg]
    """Text that a file can hold, of up to `most` characters; not blank, unless `blank`."""

    name = "text"

    def __init__(self, most: int = MOST_TEXT, *, blank: bool = False) -> None:
        self.most, self.blank = most, blank

    def convert(self, value: Any, param: Parameter, ctx: Context) -> str:
        """The text. Raises ConfigError."""
        text = str(value)
        if not self.blank and not text.strip():
            raise wrong(param, text, "text that is not empty")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise wrong(param, text, "text in UTF-8")
        if len(text) > self.most:
            raise wrong(param, text, f"at most {self.most} characters")
        return text


class Secret(Words):
    """A key, which is never echoed: what an HTTP header can hold."""

    def convert(self, value: Any, param: Parameter, ctx: Context) -> str:
        """The key. Raises ConfigError."""
        text = str(value)
        if not text.isascii() or not text.isprintable():
            raise ConfigError(f"{option(param)}: got characters that no header can hold; expected a key")
        return text


class Numbers(click.ParamType):  # type: ignore[type-arg]
    """`1K,8K,32768` as rising numbers, K being 1024, none above `most`. `some`: at least one."""

    name = "numbers"

    def __init__(
        self, what: str = "tokens such as 1K,8K,32768", most: int = MOST_TOKENS, *, some: bool = False
    ) -> None:
        self.what, self.most, self.some = what, most, some

    def convert(self, value: Any, param: Parameter, ctx: Context) -> tuple[int, ...]:
        """The numbers. Raises ConfigError."""
        if isinstance(value, tuple):
            return value
        found: set[int] = set()
        for word in str(value).split(",") if str(value).strip() else ():
            try:
                (number,) = parse_lengths(word)
            except ConfigError:
                number = self.most + 1
            if number > self.most:
                raise wrong(param, word.strip(), f"{self.what}, at most {_bound(self.most)}")
            found.add(number)
        if self.some and not found:
            raise ConfigError(f"{option(param)}: got nothing; expected {self.what}")
        if len(found) > MOST_NUMBERS:
            raise ConfigError(f"{option(param)}: got {len(found)} numbers; expected at most {MOST_NUMBERS}")
        return tuple(sorted(found))


class FilePath(click.Path):
    """A path whose names are no longer than a file system takes."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Parameter, ctx: Context) -> Any:
        """The path. Raises ConfigError."""
        if too_long(str(value)):
            raise ConfigError(f"got {shown(str(value))}; expected a path, no name in it longer than {MOST_NAME} bytes")
        return super().convert(value, param, ctx)


def too_long(path: str) -> bool:
    """Whether no file can be called that."""
    return len(path) > 4095 or any(len(name.encode(errors="replace")) > MOST_NAME for name in path.split("/"))


def product_at_most(
    most: int, first: Sequence[int], second: Sequence[int], options: str, what: str = "tokens at once"
) -> None:
    """Raises ConfigError when the largest of both together are more than `most`."""
    if first and second and first[-1] * second[-1] > most:
        raise ConfigError(
            f"{options}: got {first[-1]} times {second[-1]} {what}; expected at most {_bound(most)}, or two runs"
        )


def wrong(param: Parameter, value: Any, expected: str) -> ConfigError:
    """`--option: got ...; expected ...`."""
    return ConfigError(f"{option(param)}: got {shown(str(value))}; expected {expected}")


def option(param: Parameter) -> str:
    """What it is called on the command line."""
    return param.opts[0] if param is not None else "value"


def _bound(most: int) -> str:
    return length_text(most) if most >= 1 << 20 else str(most)
