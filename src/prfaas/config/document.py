"""A YAML file as plain values, each with the line it stands on.

It knows YAML and lines; it does not know what the file is about. It refuses what makes YAML dangerous or surprising:
large files, deep nesting, duplicate keys, keys that are no text, and aliases that multiply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from prfaas.config.echo import cut
from prfaas.config.textfile import read_text
from prfaas.core.errors import ConfigError

MAX_BYTES = 256 << 10
MAX_VALUES = 20_000

Where = tuple[str | int, ...]


@dataclass(slots=True)
class Document:
    """`value` as YAML says it; `lines` by path of keys and positions, from 1."""

    path: Path
    value: Any = None
    lines: dict[Where, int] = field(default_factory=dict)

    def line(self, where: Where) -> int:
        """The line of `where`, or of the nearest thing around it that has one."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)

    def error(self, where: Where, what: str) -> ConfigError:
        """`FILE:LINE: path: what`."""
        return _error(self.path, self.line(where), f"{dotted(where)}: {what}" if where else what)

    def located(self, error: ConfigError) -> ConfigError:
        """`error` with the file, the line and the path, when it says where in this file it belongs."""
        return self.error(error.where, str(error)) if error.where else error


def dotted(where: Where) -> str:
    """`clusters.home.nodes[0].role`."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{key if key.isprintable() else repr(key)}" for key in where)
    return "".join(keys).lstrip(".")


def read_document(path: Path, what: str = "a topology file (see `prfaas schema`)") -> Document:
    """The one YAML document in `path`, which should be `what`. Raises ConfigError with the line."""
    text = read_text(path, what, MAX_BYTES)
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is None:
            raise _error(path, 1, f"the file is empty; expected {what}")
        document = Document(path)
        document.value = _Walk(document, loader).value(root, ())
        return document
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context).split())
        raise _error(path, mark.line + 1 if mark else 1, f"not valid YAML: {what}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise _error(path, line, f"not valid YAML: {error.reason}: {chr(error.character)!r}") from None
    except RecursionError:
        raise _error(path, 1, "nested too deeply") from None


class _Walk:
    """Turns nodes into values, counting, so that aliases cannot make a small file a large value."""

    def __init__(self, document: Document, loader: yaml.SafeLoader) -> None:
        self.document = document
        self.loader = loader
        self.count = 0
        self.open: list[yaml.Node] = []

    def value(self, node: yaml.Node, where: Where) -> Any:
        self.count += 1
        self.document.lines.setdefault(where, node.start_mark.line + 1)
        if self.count > MAX_VALUES:
            raise self.document.error(where, f"more than {MAX_VALUES} values; expected a smaller file")
        if node in self.open:
            raise self.document.error(where, "an alias that contains itself")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, where)
        self.open.append(node)
        value = self._mapping(node, where) if isinstance(node, yaml.MappingNode) else self._sequence(node, where)
        self.open.pop()
        return value

    def _scalar(self, node: yaml.ScalarNode, where: Where) -> Any:
        try:
            return self.loader.construct_object(node)
        except (ValueError, yaml.MarkedYAMLError):
            raise self.document.error(where, f"cannot read {cut(repr(node.value))} as {node.tag}") from None

    def _sequence(self, node: yaml.Node, where: Where) -> list[Any]:
        return [self.value(item, (*where, at)) for at, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise _error(self.document.path, line, "`<<` is not understood; expected the settings themselves")
            if key_node.tag != "tag:yaml.org,2002:str":
                shown = key if isinstance(key, str) else "that is a list or mapping"
                raise _error(self.document.path, line, f"key {shown} is not text; expected it in quotes")
            if key in found:
                first = self.document.lines[*where, key]
                raise _error(self.document.path, line, f"{dotted((*where, key))}: given twice, first on line {first}")
            self.document.lines[*where, key] = line
            found[key] = self.value(value_node, (*where, key))
        return found


def _error(path: Path, line: int, what: str) -> ConfigError:
    return ConfigError(f"{path}:{line}: {what}")
