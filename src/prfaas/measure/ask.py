"""One request to an OpenAI endpoint, and when each of its tokens came.

It knows /v1/models and streamed /v1/completions as vLLM, SGLang and prfaas speak them; it does not know what is being
measured. Whatever goes wrong is a PeerFailure, or Refused with the HTTP status.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import aiohttp
import msgspec

from prfaas.config.echo import one_line, shown
from prfaas.core.errors import ConfigError, PeerFailure, ProtocolError
from prfaas.runtime.client import Refused, call, refusal, sendable
from prfaas.wire.sse import EventReader

EXPECTED = "an endpoint such as http://127.0.0.1:8000/v1"


class _Card(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[_Card]


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


class _Choice(msgspec.Struct):
    text: str | None = ""


class _Error(msgspec.Struct):
    message: str = ""
    code: str | int | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """What an endpoint serves: `longest` is prompt and answer together, where it says so."""

    model: str
    longest: int | None


@dataclass(slots=True)
class Heard:
    """One answer so far. `arrivals`: (when, tokens until then), ns of the monotonic clock. `prompt` and `cached` are
    tokens as the endpoint counts them; `cached` is None where it does not say.
    """

    sent_ns: int = 0
    arrivals: list[tuple[int, int]] = field(default_factory=list)
    prompt: int | None = None
    cached: int | None = None
    ended: bool = False

    @property
    def first_ns(self) -> int | None:
        """When its first token came."""
        return self.arrivals[0][0] if self.arrivals else None


class Endpoint:
    """The model `served` at `url` (which ends in /v1)."""

    def __init__(self, session: aiohttp.ClientSession, url: str, served: Served, timeout_s: float) -> None:
        self.url, self.served = url, served
        self._session, self._timeout_s = session, timeout_s

    async def hear(
        self, prompt: str, max_tokens: int, heard: Heard | None = None, moved: Callable[[], None] = lambda: None
    ) -> Heard:
        """Ask, and fill `heard` until the answer ends; `moved()` at every token. Cancel it to hang up.

        Raises Refused, PeerFailure ("unreachable", "cut_off", "timeout", or what the answer's error says),
        ProtocolError ("bad_reply").
        """
        heard = heard if heard is not None else Heard()
        body = {
            "model": self.served.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "ignore_eos": True,
        }
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._stream(msgspec.json.encode(body), heard, moved)
        except TimeoutError:
            raise PeerFailure("timeout", f"no whole answer within {self._timeout_s:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            code = "cut_off" if heard.arrivals else "unreachable"
            raise PeerFailure(code, f"{self.url}: {error or type(error).__name__}") from None
        finally:
            moved()
        if heard.prompt is None:
            raise ProtocolError(
                "bad_reply", f"{self.url}: no usage in the stream; expected stream_options.include_usage"
            )
        return heard

    async def _stream(self, body: bytes, heard: Heard, moved: Callable[[], None]) -> None:
        headers = {"Content-Type": "application/json"}
        heard.sent_ns = time.monotonic_ns()
        async with self._session.post(f"{self.url}/completions", data=sendable(body), headers=headers) as response:
            if response.status >= 400:
                raise await refusal(response)
            reader = EventReader()
            async for data in response.content.iter_any():
                now_ns = time.monotonic_ns()
                for event in reader.feed(data):
                    if event.is_done:
                        heard.ended = True
                        return
                    self._note(event.data, now_ns, heard)
                moved()
        if not heard.ended:
            raise PeerFailure("cut_off", f"{self.url}: the answer ended without [DONE]")

    def _note(self, data: str, now_ns: int, heard: Heard) -> None:
        try:
            chunk = msgspec.json.decode(data, type=_Chunk)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise ProtocolError("bad_reply", f"{self.url}: {error}") from None
        if chunk.error is not None:
            raise PeerFailure(str(chunk.error.code or "failed"), chunk.error.message)
        before = heard.arrivals[-1][1] if heard.arrivals else 0
        if chunk.usage is not None:
            heard.prompt = chunk.usage.prompt_tokens
            details = chunk.usage.prompt_tokens_details
            heard.cached = details.cached_tokens if details is not None else heard.cached
        if chunk.choices:
            # An endpoint that counts as it goes says how many tokens a chunk has; without that it is one.
            counted = chunk.usage.completion_tokens if chunk.usage is not None else None
            count = counted if counted else before + 1
            if count > before:
                heard.arrivals.append((now_ns, count))


def endpoint_url(url: str) -> str:
    """`url` with scheme and /v1. Raises ConfigError."""
    if any(mark in url for mark in "@?#"):  # not echoed: there may be a password in it
        raise ConfigError(f"got an endpoint with a user, a query or a fragment; expected {EXPECTED}, without")
    if not url.startswith(("http://", "https://")) or not url.isprintable() or " " in url:
        raise ConfigError(f"got {shown(url)}; expected {EXPECTED}")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", 80 if parts.port is None else parts.port
        host.removesuffix(".").encode("idna")  # as a resolver does, which fails at labels of 0 or over 63 characters
    except ValueError:
        host, port = "", 0
    if not host or not port:
        raise ConfigError(f"got {shown(url)}; expected {EXPECTED}: a host, and a port from 1 to 65535")
    url = url.rstrip("/")
    return url if url.endswith("/v1") else f"{url}/v1"


async def discover(session: aiohttp.ClientSession, url: str, model: str | None, timeout_s: float) -> Served:
    """What the endpoint at `url` serves: its only model, or `model`. Raises ConfigError, or what `call` does."""
    try:
        cards = (await call(session, "GET", f"{url}/models", None, _Cards, timeout_s=timeout_s)).data
    except Refused as error:
        if error.status in (401, 403):
            raise ConfigError(
                f"{url}: HTTP {error.status}: {one_line(error.detail)}; expected a key in $OPENAI_API_KEY"
            ) from None
        if error.status == 404 and model is not None:
            return Served(model, None)
        raise
    names = one_line(", ".join(card.id for card in cards))
    if model is None and len(cards) == 1:
        return Served(cards[0].id, cards[0].max_model_len)
    for card in cards:
        if card.id == model:
            return Served(card.id, card.max_model_len)
    if model is None:
        raise ConfigError(f"{url} serves {names or 'nothing'}; expected --model with one of them")
    raise ConfigError(f"{url}: no model {shown(model)}; expected one of {names or 'none'}")
