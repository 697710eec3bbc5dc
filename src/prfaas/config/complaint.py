"""What msgspec found wrong, said for the person who wrote the file: where, what it is, what was expected.

It knows msgspec's messages and types; it does not know lines or which settings there are.
"""

from __future__ import annotations

import difflib
import re
from typing import Any

import msgspec
from msgspec import inspect

from prfaas.config.document import Where
from prfaas.config.echo import cut
from prfaas.config.units import Endpoint, Quantity

_AT = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`(?P<path>\$[^`]*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_]*)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_EXPECTED = re.compile(r"Expected (?P<types>`[^`]*`)(?P<rest>.*?)(?:, got `[^`]*`)?", re.DOTALL)
_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}


def convert(value: Any, shape: Any) -> Any:
    """`value` as a `shape`. Raises msgspec.ValidationError."""
    return msgspec.convert(value, shape, dec_hook=parse_custom)


def parse_custom(kind: type, value: Any) -> Any:
    """msgspec's hook for quantities and endpoints. Raises ValueError."""
    if issubclass(kind, Quantity | Endpoint):
        return kind.parse(value)
    raise TypeError(f"no way to read {kind.__name__}")


def written(value: Any) -> str:
    """msgspec's hook the other way: a quantity or an endpoint as text."""
    if isinstance(value, Quantity):
        return value.text()
    if isinstance(value, Endpoint):
        return str.__str__(value)
    raise TypeError(f"no way to write {type(value).__name__}")


def explain(error: msgspec.ValidationError, value: Any, shape: Any) -> tuple[Where, str]:
    """Where in `value`, which is no `shape`, the fault lies, and `what is wrong; expected ...`."""
    match = _AT.fullmatch(str(error))
    what, path = (match["what"], match["path"] or "$") if match else (str(error), "$")
    where = _where(path, value, shape)
    described = _type_at(shape, where, value)
    kind = _bare(described, said=_value_at(value, where))
    if match and match["key"] and isinstance(kind, inspect.DictType):
        names = _value_at(value, where)
        wrong = next((name for name in names if not re.search(_bare(kind.key_type).pattern, name)), "")
        return (*where, wrong), f"not a name that is allowed; expected {_pattern_words(kind.key_type)}"
    if unknown := _UNKNOWN.fullmatch(what):
        names = [field.encode_name for field in kind.fields] if isinstance(kind, inspect.StructType) else []
        return (*where, unknown[1]), f"unknown setting; {_meant(unknown[1], names)}"
    if missing := _MISSING.fullmatch(what):
        return where, f"`{missing[1]}` is missing; expected it here"
    return where, _wrong(what, _value_at(value, where), kind, described)


def _wrong(what: str, given: Any, kind: Any, described: Any) -> str:
    if isinstance(kind, inspect.LiteralType):
        return f"got {_shown(given)}; expected {_listed([str(v) for v in kind.values])}{_near(given, kind.values)}"
    expected = _EXPECTED.fullmatch(what)
    if expected is None:
        return what
    words = [_WORDS.get(name, name) for name in expected["types"].strip("`").split(" | ") if name != "null"]
    rest = expected["rest"].strip()
    if rest.startswith("matching regex"):
        return f"got {_shown(given)}; expected {_pattern_words(described)}"
    rest = re.sub(r"of length >= 1", "that is not empty", rest)
    return f"got {_shown(given)}; expected {' or '.join(words)} {rest}".rstrip()


def _shown(given: Any) -> str:
    match given:
        case None:
            return "nothing"
        case bool():
            return "true" if given else "false"
        case dict():
            return "a mapping" if given else "an empty mapping"
        case list():
            return "a list" if given else "an empty list"
        case str() | int() | float():
            return cut(repr(given))
        case _:
            return f"a {type(given).__name__}"


def _meant(name: str, names: list[str]) -> str:
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{close[0]}`?" if close else f"expected {_listed(names)}"


def _near(given: Any, values: tuple[Any, ...]) -> str:
    close = difflib.get_close_matches(str(given), [str(v) for v in values], n=1)
    return f" (did you mean `{close[0]}`?)" if close and len(values) > 1 else ""


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"one of {', '.join(names)}"


def _pattern_words(kind: Any) -> str:
    """What the innermost description of a text with a pattern says."""
    words = "text in another form"
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            words = str((kind.extra_json_schema or {}).get("description", words))
            kind = kind.type
        else:
            kind = _bare(kind, once=True)
    words = words.rstrip(".")
    return words[0].lower() + words[1:]


def _where(path: str, value: Any, shape: Any) -> Where:
    """The path in keys; msgspec writes `[...]` for a mapping's key, which is found by trying each of them."""
    where: Where = ()
    for name, index in _STEP.findall(path):
        if index == "...":
            kind = _bare(_type_at(shape, where, value))
            where = (*where, _culprit(_value_at(value, where), kind))
        else:
            where = (*where, int(index) if index else name)
    return where


def _culprit(mapping: dict[str, Any], kind: Any) -> str:
    shape = kind.value_type.cls
    for key, value in mapping.items():
        try:
            convert(value, shape)
        except msgspec.ValidationError:
            return key
    return next(iter(mapping))


def _value_at(value: Any, where: Where) -> Any:
    for key in where:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _type_at(shape: Any, where: Where, value: Any) -> Any:
    """msgspec's description of the type at `where`; of structs in kinds, of the kind that `value` says it is."""
    kind: Any = inspect.type_info(shape)
    for at, key in enumerate(where):
        kinds, kind = kind, _bare(kind, said=_value_at(value, where[:at]))
        if isinstance(kind, inspect.StructType):
            known = next((field.type for field in kind.fields if field.encode_name == key), None)
            kind = inspect.LiteralType(_tags(kinds)) if known is None and key == kind.tag_field else known
        elif isinstance(kind, inspect.DictType):
            kind = kind.value_type
        elif isinstance(kind, inspect.VarTupleType | inspect.ListType):
            kind = kind.item_type
        else:
            return None
    return kind


def _tags(kind: Any) -> tuple[str, ...]:
    """What a struct's kind may be."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    structs = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return tuple(str(one.tag) for one in structs if isinstance(one, inspect.StructType))


def _bare(kind: Any, *, once: bool = False, said: Any = None) -> Any:
    """Without descriptions, without `or nothing`, and of structs in kinds the one that `said` is, else the first."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        else:
            some = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
            tagged = [one for one in some if isinstance(one, inspect.StructType) and isinstance(said, dict)]
            kind = next((one for one in tagged if one.tag_field and said.get(one.tag_field) == one.tag), some[0])
        if once:
            break
    return kind
