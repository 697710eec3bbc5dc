"""OpenAI's requests: bytes to checked values.

It knows types, ranges and names of fields. It does not know models, tokens or limits of a deployment. Every fault is a
RequestError with OpenAI's `param` and `code`; nothing is coerced or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from prfaas.core.errors import RequestError
from prfaas.model.text import packed
from prfaas.wire.openai.fields import check_fields

MAX_STOPS = 4
MAX_STOP_CHARS = 4096
MAX_CHOICES = 8

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Word = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Stop = str | list[str] | None


class StreamOptions(msgspec.Struct, frozen=True):
    """`stream_options`: whether a last chunk carries the usage."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request have. `None` stands for OpenAI's default."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    seed: Word | None = None
    stop: Stop = None
    ignore_eos: bool | None = None
    """vLLM's: the model's own end marks do not end the answer (for load tests)."""
    kv_transfer_params: dict[str, Any] | None = None
    """vLLM's: how KV is handed over. Only nodes take it; a public endpoint must refuse it."""

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, none to four."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def choices(self) -> int:
        """How many answers are wanted."""
        return 1 if self.n is None else self.n


class _Completion(Common, frozen=True, kw_only=True):
    """`POST /v1/completions`, all but the prompt."""

    max_tokens: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    """0 with `echo`: the prompt alone is told, and scored."""
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    echo: bool | None = None
    best_of: Count | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The client's bound on generated tokens, or None."""
        return self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """How many likely tokens are told beside each token's own log-probability; None when that is not told."""
        return self.logprobs

    @property
    def prompt_field(self) -> str:
        """What the prompt is in."""
        return "prompt"

    @property
    def bound_field(self) -> str:
        """What bounds the answer."""
        return "max_tokens"

    @property
    def stays(self) -> str:
        """Why a decode node must compute all of it: `echo` (the prompt's own scores are where it is computed), or
        nothing."""
        return "echo" if self.echo else ""


class CompletionRequest(_Completion, frozen=True, kw_only=True):
    """`POST /v1/completions`. `prompt` is the one prompt: text, or token ids, of which there is one at least; packed,
    unless one of them is no token of any model."""

    prompt: str | Sequence[int]

    @property
    def text_or_ids(self) -> str | Sequence[int]:
        """The prompt."""
        return self.prompt


class _CompletionBody(_Completion, frozen=True, kw_only=True):
    """As it comes: the prompt is looked at before it is decoded, since lists of ids are long."""

    prompt: msgspec.Raw


class TextPart(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """One text part of a message; other types of parts are refused by name."""

    text: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One turn. What an answer of OpenAI's client holds beside the text is accepted when it is empty."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    tool_calls: Annotated[list[Any], Meta(max_length=0)] | None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None

    @property
    def text(self) -> str:
        """The content; its parts joined by a newline, as vLLM joins them."""
        if isinstance(self.content, list):
            return "\n".join(part.text for part in self.content)
        return self.content or ""

    def as_dict(self) -> dict[str, str]:
        """For a chat template: `role`, `content`, and `name` when there is one."""
        named = {"name": self.name} if self.name is not None else {}
        return {"role": self.role, "content": self.text} | named


class ChatCompletionRequest(Common, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def max_new_tokens(self) -> int | None:
        """The client's bound on generated tokens, or None; `max_completion_tokens` goes before the older name."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def likeliest(self) -> int | None:
        """How many likely tokens are told beside each token's own log-probability; None when that is not told."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def prompt_field(self) -> str:
        """What the prompt is in."""
        return "messages"

    @property
    def bound_field(self) -> str:
        """What bounds the answer."""
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def stays(self) -> str:
        """Why a decode node must compute all of it: nothing does."""
        return ""


AnyRequest = CompletionRequest | ChatCompletionRequest
R = TypeVar("R", _CompletionBody, ChatCompletionRequest)

_FIELDS = {kind: frozenset(kind.__struct_fields__) for kind in (_CompletionBody, ChatCompletionRequest)}
_PROMPT = re.compile(rb"\s*(\[\s*[\"\[]?)?")
_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `(\w+)`")


def parse_completion(body: bytes, *, engine_checks: bool = False) -> CompletionRequest:
    """A body of `/v1/completions`. With `engine_checks`, fields that are not known here are the engine's to judge.
    Raises RequestError, 400."""
    found = _parse(body, _CompletionBody, engine_checks)
    if found.max_tokens == 0 and not found.echo:
        raise RequestError(
            "max_tokens: 0 needs echo: true; else there is nothing to answer", param="max_tokens", code="invalid_value"
        )
    if found.best_of is not None and found.best_of != found.choices:
        said = f"best_of: {found.best_of} of n = {found.choices}; expected as many"
        code = "invalid_value" if found.best_of < found.choices else "unsupported_parameter"
        raise RequestError(said, param="best_of", code=code)
    fields = {name: getattr(found, name) for name in _Completion.__struct_fields__}
    return CompletionRequest(prompt=_prompt(found.prompt), **fields)


def parse_chat(body: bytes, *, engine_checks: bool = False) -> ChatCompletionRequest:
    """A body of `/v1/chat/completions`. `engine_checks` as in `parse_completion`. Raises RequestError, 400."""
    request = _parse(body, ChatCompletionRequest, engine_checks)
    for index, message in enumerate(request.messages):
        if message.content is None and message.role != "assistant":
            said = f"a message of role {message.role} has no content"
            param = f"messages[{index}].content"
            raise RequestError(said, param=param, code="missing_required_parameter")
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs", code="invalid_value")
    return request


def _prompt(raw: msgspec.Raw) -> str | Sequence[int]:
    """The one prompt: text, ids, or a list of one of either."""
    begins = _PROMPT.match(raw)
    opening = begins[0].strip() if begins else b""
    many: list[str] | list[list[int]]
    try:
        if opening.endswith(b'"'):
            many = msgspec.json.decode(raw, type=list[str])
        elif len(opening) > 1:
            many = msgspec.json.decode(raw, type=list[list[Word]])
        else:
            one = msgspec.json.decode(raw, type=str | list[Word])
            many = [one]  # type: ignore[assignment]
    except msgspec.ValidationError as error:
        raise _mistake(str(error), "prompt") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _no_json(error, raw) from None
    if len(many) != 1:
        raise RequestError("only one prompt a request is supported", param="prompt", code="several_prompts")
    one_prompt = many[0]
    if isinstance(one_prompt, str):
        return one_prompt
    if not one_prompt:
        raise RequestError("prompt is an empty list", param="prompt", code="empty_prompt")
    try:
        return packed(one_prompt)
    except OverflowError:  # who knows the model refuses it, by its number
        return one_prompt


def _parse(body: bytes, kind: type[R], engine_checks: bool) -> R:
    try:
        body.decode()  # of fields that nobody reads, msgspec would not say that they are no UTF-8
        if not engine_checks:
            check_fields(msgspec.json.decode(body, type=dict[str, msgspec.Raw]), _FIELDS[kind])
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _mistake(str(error)) from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _no_json(error, body) from None
    except RecursionError:
        raise RequestError("the body is nested too deeply", code="invalid_json") from None
    stops = request.stops
    if len(stops) > MAX_STOPS:
        raise RequestError(f"stop: at most {MAX_STOPS} strings, got {len(stops)}", param="stop", code="invalid_value")
    if any(not stop or len(stop) > MAX_STOP_CHARS for stop in stops):
        said = f"stop: each string has 1 to {MAX_STOP_CHARS} characters"
        raise RequestError(said, param="stop", code="invalid_value")
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options", code="invalid_value")
    return request


def _no_json(error: Exception, body: bytes | msgspec.Raw) -> RequestError:
    said = f"no UTF-8 at byte {error.start}" if isinstance(error, UnicodeDecodeError) else str(error)
    if not bytes(memoryview(body)[:1000]).strip():
        said = "it is empty"
    elif said == "Input data was truncated":  # also for half of a surrogate pair at the end of a string
        said = "it is cut off, or a string has half of a surrogate pair"
    return RequestError(f"the body is no valid JSON: {said}", code="invalid_json")


def _mistake(text: str, within: str = "") -> RequestError:
    """msgspec's message as OpenAI reports it: the path apart, as `param`; it begins at the field `within`."""
    path = _PATH.search(text)
    missing = _MISSING.search(text)
    param = within + (path.group(1) if path else "")
    if missing:
        param = f"{param}.{missing.group(1)}".lstrip(".")
        return RequestError(f"missing required parameter: {param}", param=param, code="missing_required_parameter")
    said = text[: path.start()] if path else text
    wrong_type = said.startswith("Expected `") and ", got `" in said
    code = "invalid_type" if wrong_type else "invalid_value"
    return RequestError(f"{param}: {said}" if param else said, param=param or None, code=code)


def add_field(body: bytes, name: str, value: msgspec.Struct | dict[str, Any]) -> bytes:
    """`body` (a JSON object that was parsed before, so not empty) with one more field, the rest untouched, unparsed."""
    head = body.rstrip(b" \t\r\n")[:-1]
    return b"%b,%b:%b}" % (head, msgspec.json.encode(name), msgspec.json.encode(value))
