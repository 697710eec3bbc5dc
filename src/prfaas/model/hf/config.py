"""A Hugging Face config.json: its settings, asked for one by one, and what is wrong with them in one line.

It knows JSON, the nested `text_config` and the names of types; it does not know families. Settings that nobody asks for
are not looked at: configs carry many.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prfaas.core.errors import ConfigError

MAX_BYTES = 16 << 20
MAX_NUMBER = 1 << 24
MAX_LAYERS = 1 << 12
MAX_DIGITS = 400
"""Of a whole number, whoever asks for it: longer ones Python neither reads nor writes, and takes its time over."""


class Config:
    """The settings of one mapping in `file`; `path` leads to it, dotted, empty for the whole file."""

    __slots__ = ("_text", "_values", "file", "path")

    def __init__(self, file: Path, text: str, values: dict[str, Any], path: str = "") -> None:
        self.file = file
        self.path = path
        self._text = text
        self._values = values

    def has(self, name: str) -> bool:
        """Whether `name` is set to something else than null."""
        return self._values.get(name) is not None

    def integer(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """The first of `names` that is set: a whole number of `least` or more. ConfigError names the first when none
        is, and no default."""
        expected = f"a whole number of {least} or more"
        for name in names:
            if self.has(name):
                value = self._values[name]
                if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
                    raise self.wrong(name, f"{expected}, at most {MAX_NUMBER}")
                return value
        if default is None:
            raise self.missing(names[0], expected)
        return default

    def layer_count(self) -> int:
        """`num_hidden_layers`."""
        count = self.integer("num_hidden_layers")
        if count > MAX_LAYERS:
            raise self.wrong("num_hidden_layers", f"at most {MAX_LAYERS}")
        return count

    def text(self, name: str) -> str:
        """A text; empty when it is not set."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "text")
        return value or ""

    def flag(self, name: str) -> bool:
        """True or false; false when it is not set."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return bool(value)

    def integers(self, name: str) -> list[int] | None:
        """A list of whole numbers, zero allowed, or None when it is not set."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in value):
            raise self.wrong(name, "a list of whole numbers")
        return value

    def texts(self, name: str) -> list[str] | None:
        """A list of texts, or None when it is not set."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of texts")
        return value

    def section(self, name: str) -> Config | None:
        """The mapping called `name`, or None when it is not set."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.wrong(name, "a mapping")
        return Config(self.file, self._text, value, self._dotted(name))

    def missing(self, name: str, expected: str) -> ConfigError:
        """`name` is not set, and nothing can be said without it."""
        where = f"{self.path}: " if self.path else ""
        return ConfigError(f"{self._at(self.path)}: {where}`{name}` is missing; expected {expected}")

    def wrong(self, name: str, expected: str) -> ConfigError:
        """`name` is set to what it cannot be."""
        shown = json.dumps(self._values.get(name))
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ConfigError(f"{self._at(name)}: {self._dotted(name)}: got {shown}; expected {expected}")

    def _dotted(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def _at(self, name: str) -> str:
        """FILE:LINE of the first setting called like the last part of `name` (inside this mapping, where nested)."""
        at = 0
        for step in (*self.path.split("."), name.rpartition(".")[2]):
            found = re.compile(rf'"{re.escape(step)}"\s*:').search(self._text, at) if step else None
            at = found.start() if found else at
        return f"{self.file}:{self._text.count(chr(10), 0, at) + 1}"


def read_config(file: Path) -> Config:
    """The settings of the language model in `file`: those of `text_config`, where there is one. Raises ConfigError."""
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{file}:1: larger than {MAX_BYTES >> 20} MiB; expected a Hugging Face config.json")
    try:
        text = data.decode("utf-8-sig")
        values = json.loads(text, parse_int=_whole)
    except UnicodeDecodeError:
        raise ConfigError(f"{file}:1: not UTF-8 text; expected a Hugging Face config.json") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{file}:{error.lineno}: not valid JSON: {error.msg}") from None
    except _TooLong as error:
        digits = str(error)
        line = text.count("\n", 0, text.find(digits)) + 1
        what = f"got {digits[:20]}..., a number of {len(digits.lstrip('-'))} digits"
        raise ConfigError(f"{file}:{line}: {what}; expected at most {MAX_DIGITS}") from None
    except RecursionError:
        raise ConfigError(f"{file}:1: nested too deeply; expected a Hugging Face config.json") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{file}:1: got {type(values).__name__}; expected a mapping, a Hugging Face config.json")
    whole = Config(file, text, values)
    inner = whole.section("text_config")
    if inner is None or not (inner.has("num_hidden_layers") or inner.has("model_type")):
        return whole
    above = {name: values[name] for name in ("model_type", "architectures", "dtype", "torch_dtype") if name in values}
    return Config(file, text, above | values["text_config"], "text_config")


class _TooLong(Exception):
    """A whole number of more digits than anyone has a use for."""


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise _TooLong(digits)
    return int(digits)
