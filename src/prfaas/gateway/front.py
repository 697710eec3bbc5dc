"""The OpenAI front door: reads what clients send, hands an exchange to the gateway, relays the answer.

It knows HTTP and OpenAI's API. It does not know routing: it waits for a verdict. Nothing is sent to the client
before the first token exists, so that until then any failure has another way.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import aiohttp
import structlog
from aiohttp import web

from prfaas.cluster.registrar import Registrar
from prfaas.core.errors import RequestError
from prfaas.core.ids import RequestId
from prfaas.gateway.booking import Booking
from prfaas.gateway.exchange import DONE_MARK, Exchange, Upstream
from prfaas.gateway.gateway import Gateway
from prfaas.model.text import Text
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.http import (
    BODY_S,
    error_reply,
    event_stream,
    expect_later,
    json_bytes_reply,
    json_reply,
    make_app,
    read_body,
    send_within,
)
from prfaas.runtime.metrics import CONTENT_TYPE
from prfaas.wire.members import PATH as MEMBERS
from prfaas.wire.openai import (
    AnyRequest,
    ErrorDetail,
    ModelCard,
    ModelList,
    error_event,
    parse_chat,
    parse_completion,
)
from prfaas.wire.openai.fields import reshapes
from prfaas.wire.openai.prompt import parsed, prompt_of, prompt_tokens

log = structlog.get_logger(__name__)
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
DEADLINE_HEADER = "x-prfaas-deadline-ms"
ROUTE_HEADER = "x-prfaas-route"
LATE_NS = 2 * 10**9
"""How long after a request's deadline its client may still be told of it."""
Parse = Callable[[bytes], AnyRequest]


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """What the door checks. `created_s`: Unix time that the model list shows. `max_requests`: served at once; the
    bound on all that a gateway holds, bodies included, and checked before a body is read. `secret`: what nodes show."""

    model: str
    max_body_bytes: int
    deadline_ns: int
    api_keys: tuple[str, ...]
    created_s: int
    max_requests: int = 1024
    secret: str = field(default="", repr=False)
    vllm: bool = False
    """The engines are vLLM's: they check what is not known here."""


class Front:
    """The HTTP application of a gateway."""

    def __init__(self, settings: FrontSettings, gateway: Gateway, text: Text) -> None:
        self._settings = settings
        self._gateway = gateway
        self._text = text
        self._inside = 0
        self._booking = Booking(frozenset({COMPLETIONS, CHAT}), gateway.metrics)

    def app(self) -> web.Application:
        """The routes. With API keys, all but health and metrics demand one; nodes that join show the secret."""
        settings = self._settings
        inside = {MEMBERS: (settings.secret,) if settings.secret else ()}
        app = make_app(
            max_body_bytes=settings.max_body_bytes, keys=settings.api_keys, inside=inside, around=self._booking.book
        )
        Registrar(self._gateway.roster).add_to(app.router)
        app.router.add_post(COMPLETIONS, self._completions, expect_handler=expect_later)
        app.router.add_post(CHAT, self._chat, expect_handler=expect_later)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._model)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        return app

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, partial(parse_completion, engine_checks=self._settings.vllm))

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._serve(http, partial(parse_chat, engine_checks=self._settings.vllm))

    async def _models(self, http: web.Request) -> web.Response:
        return json_reply(ModelList([self._card()]))

    async def _model(self, http: web.Request) -> web.Response:
        self._check_model(http.match_info["name"])
        return json_reply(self._card())

    def _card(self) -> ModelCard:
        return ModelCard(self._settings.model, self._settings.created_s, self._gateway.max_model_len)

    async def _health(self, http: web.Request) -> web.Response:
        if self._gateway.ready:
            return json_reply({"status": "ok"})
        return json_reply({"status": "no decode node is ready"}, 503)

    async def _metrics(self, http: web.Request) -> web.Response:
        return web.Response(body=self._gateway.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _serve(self, http: web.Request, parse: Parse) -> web.StreamResponse:
        if self._inside >= self._settings.max_requests:
            message = f"{self._inside} requests are being served, which is the limit"
            raise RequestError(message, status=429, kind="rate_limit_error", code="too_many_requests", retry_after_s=1)
        self._inside += 1
        try:
            return await self._admitted(http, parse)
        finally:
            self._inside -= 1

    async def _admitted(self, http: web.Request, parse: Parse) -> web.StreamResponse:
        began_ns = loop_now_ns()
        allowed_ns = self._deadline_ns(http)
        deadline_ns = began_ns + allowed_ns
        body = await read_body(http, min(BODY_S, allowed_ns / 1e9))
        request = await parsed(parse, body, self._text)
        self._check(request)
        with self._gateway.metrics.stage("tokenize"):
            tokens = await prompt_tokens(request, self._text, partial(self._check_length, request, "at least "))
        self._check_length(request, "", len(tokens))
        exchange = Exchange(
            request=RequestId(uuid.uuid4().hex),
            path=http.path,
            body=body,
            stream=bool(request.stream),
            prompt=await prompt_of(tokens, self._text, self._gateway.hash_root),
            deadline_ns=deadline_ns,
            verdict=asyncio.get_running_loop().create_future(),
        )
        stays = request.stays or await self._stays(request, body)
        self._booking.placed(http)
        self._gateway.arrive(exchange, stays)
        try:
            upstream = await exchange.verdict
            if upstream.stream:
                return await self._stream(http, exchange, upstream)
            upstream.relayed.set()
            self._gateway.answered(exchange, upstream)
            reply = json_bytes_reply(upstream.begun, headers={ROUTE_HEADER: exchange.route_header})
            return await send_within(http, reply, deadline_ns + LATE_NS)
        except RequestError as error:
            reply = error_reply(error)
            if exchange.decided is not None:
                reply.headers[ROUTE_HEADER] = exchange.route_header
            return reply
        finally:
            self._gateway.leave(exchange.request)
            self._gateway.metrics.stage_took("total", loop_now_ns() - began_ns)

    async def _stays(self, request: AnyRequest, body: bytes) -> str:
        """Why vLLM must compute all of it in one place, or nothing."""
        if not self._settings.vllm:
            return ""
        if request.choices > 1:
            return "several_choices"  # vLLM makes a request of each, and KV arrives for one
        return "engine_prompt" if await self._text.off_loop(lambda: reshapes(body), len(body)) else ""

    def _check(self, request: AnyRequest) -> None:
        if request.kv_transfer_params is not None:
            said = "kv_transfer_params is not for clients"
            raise RequestError(said, param="kv_transfer_params", code="unsupported_parameter")
        self._check_model(request.model)
        if not self._gateway.ready:
            message = "no decode node is ready"
            raise RequestError(message, status=503, kind="server_error", code="no_decode_node", retry_after_s=1)

    def _check_model(self, name: str) -> None:
        if name != self._settings.model:
            message = f"the model {name[:80]!r} does not exist; this endpoint serves {self._settings.model!r}"
            raise RequestError(message, status=404, code="model_not_found", param="model")

    def _check_length(self, request: AnyRequest, how: str, prompt: int) -> None:
        """`how` is "at least " when `prompt` counts what is not tokenized. At fault is the prompt if no answer, however
        short, has room beside it."""
        limit, said = self._gateway.max_model_len, request.max_new_tokens
        answer, shortest = (1, 1) if said is None else (said, min(said, 1))
        if limit and prompt + answer > limit:
            message = (
                f"this model takes {limit} tokens of prompt and answer; the prompt has {how}{prompt},"
                f" and at least {answer} of answer are asked for"
            )
            param = request.prompt_field if prompt + shortest > limit else request.bound_field
            raise RequestError(message, status=413, code="context_length_exceeded", param=param)

    def _deadline_ns(self, http: web.Request) -> int:
        values = http.headers.getall(DEADLINE_HEADER, [])
        if not values:
            return self._settings.deadline_ns
        longest_ms, said = self._settings.deadline_ns // 1_000_000, ", ".join(values)
        if not said.isascii() or not said.isdigit() or not 1 <= int(said[:18]) <= longest_ms:
            message = f"{DEADLINE_HEADER} is {said[:32]!r}; expected 1 to {longest_ms} milliseconds"
            raise RequestError(message, param=DEADLINE_HEADER, code="invalid_value")
        return int(said) * 1_000_000

    async def _stream(self, http: web.Request, exchange: Exchange, upstream: Upstream) -> web.StreamResponse:
        """Relay the node's events; a stream that breaks ends with an `error` event and without `[DONE]`.

        A client that does not read is cut off soon after the deadline: nobody is there to tell.
        """
        try:
            async with asyncio.timeout_at((exchange.deadline_ns + LATE_NS) / 1e9):
                return await self._relay(http, exchange, upstream)
        except TimeoutError:
            raise ConnectionAbortedError("the client does not read") from None
        finally:
            upstream.relayed.set()

    async def _relay(self, http: web.Request, exchange: Exchange, upstream: Upstream) -> web.StreamResponse:
        out = event_stream({ROUTE_HEADER: exchange.route_header})
        await out.prepare(http)
        trouble, tail, chunk = "", b"", upstream.begun
        chunks = upstream.response.content.iter_any()
        while True:
            await out.write(chunk)
            tail = (tail + chunk)[-len(DONE_MARK) :]
            if tail == DONE_MARK:
                break
            try:
                chunk = await anext(chunks)
            except StopAsyncIteration:
                trouble = "the decode node ended its stream early"
                break
            except (aiohttp.ClientError, OSError) as error:
                trouble = f"the decode node's stream broke: {error or type(error).__name__}"
                late = loop_now_ns() >= exchange.deadline_ns
                detail = ErrorDetail("the deadline passed" if late else trouble, "server_error", None, "stream_broken")
                await out.write(b"\n\n" + error_event(detail))
                break
        if trouble:
            self._gateway.broke(exchange, upstream, trouble)
        else:
            self._gateway.answered(exchange, upstream)
        await out.write_eof()
        if not trouble:  # once more, for its end: then the connection to the node can be used again
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await anext(chunks, b"")
        return out
