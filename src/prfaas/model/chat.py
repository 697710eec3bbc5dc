"""A model's chat template: messages to one prompt text.

It knows Jinja as Hugging Face's models use it (the same sandbox, filters and globals as transformers 5.24
`utils/chat_template_utils.py`, without importing transformers); it does not know tokens. A template comes with a
checkpoint, so it is foreign code: it runs in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from prfaas.core.errors import ConfigError, RequestError


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own declaration)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


class ChatTemplate:
    """One compiled template. `special_tokens`: what a template may name, such as `bos_token`.

    Raises ConfigError when `source` is no template.
    """

    __slots__ = ("_special_tokens", "_template")

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        env.filters["tojson"] = _tojson
        env.globals["raise_exception"] = _raise_exception
        env.globals["strftime_now"] = _strftime_now
        try:
            self._template = env.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"the model's chat template is broken: {error}") from None
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, up to where the assistant begins. Raises RequestError, 400, when the template refuses them."""
        turns = [dict(message) for message in messages]
        try:
            return self._template.render(
                messages=turns, tools=None, documents=None, add_generation_prompt=True, **self._special_tokens
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            said = f"the model's chat template refuses these messages: {error}"
            raise RequestError(said, param="messages", code="chat_template_refused") from None
