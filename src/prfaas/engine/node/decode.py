"""Answering a request: alone, or as the decode leg of a hand-over.

It knows arrivals, room, engine and answers, and their order: what of a hand-over the node keeps is held, the rest of
its KV lands in credit, then room is taken, then the engine copies both and the first token exists; only then does an
answer begin, so that a head may try elsewhere until then. A prompt that came alone begins with what the node keeps of
it; what it leaves is kept, of several choices the first's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.engine.base import NO_TOKEN, Engine, Token
from prfaas.engine.node.answer import Replies, StreamFailed
from prfaas.engine.node.arrival import Arrivals
from prfaas.engine.node.asked import Asked
from prfaas.engine.node.choices import Choice, Choices, Piece
from prfaas.engine.node.counted import PrefixMetrics
from prfaas.engine.node.deadline import within
from prfaas.engine.node.room import Room
from prfaas.engine.reuse import Reuse
from prfaas.model.text import Text
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.http import request_id
from prfaas.runtime.metrics import EngineMetrics, Metrics
from prfaas.transport.base import LandedKV, Receiving
from prfaas.wire.openai import AnswerWriter, CompletionRequest

log = structlog.get_logger(__name__)
NOTHING = Reuse(keeps=False)


class Answering:
    """Answers requests on one node."""

    def __init__(
        self,
        engine: Engine,
        text: Text,
        arrivals: Arrivals,
        room: Room,
        metrics: Metrics,
        counted: EngineMetrics,
        prompts: PrefixMetrics,
        model: str,
    ) -> None:
        self._engine, self._text, self._arrivals, self._room = engine, text, arrivals, room
        self._metrics, self._counted, self._prompts, self._model = metrics, counted, prompts, model
        self._sequence = 0

    async def run(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """The answer. Whatever happens, all that it held is given back.

        Raises RequestError before anything was sent: 502 "kv_transfer_failed", 503, 429, 504.
        """
        self._sequence += 1
        owner = f"sequence {self._sequence}"
        async with AsyncExitStack() as stack:
            width = self._room.width(asked.room_tokens, asked.request.choices)
            stack.callback(self._room.leave, owner)
            async with within(asked.deadline_ns):
                receiving, landed = await self._kv(asked, owner, stack)
                reuse = NOTHING
                if asked.computes:
                    wanted = self._room.prefixes.want(
                        asked.room_tokens,
                        width,
                        asked.tokens,
                        landed=landed is not None,
                        fresh=asked.sampling.prompt_logprobs is not None,
                    )
                    with self._metrics.stage("node_wait"):
                        reuse = await self._room.enter(owner, wanted)
                cached = reuse.tokens if landed is None else landed.cached
                opening = await self._opening(asked)

            prefixes = [reuse, *(reuse.again() for _ in range(1, asked.request.choices))]

            def begun() -> None:
                """Each choice has copied the KV: whoever still holds `landed` holds no memory any more."""
                if receiving is not None and landed is not None:
                    receiving.applied()
                    landed.parts.clear()
                    for prefix in prefixes:
                        prefix.copied()

            def choice(index: int) -> Choice:
                tokens = self._tokens(asked, index, landed, prefixes[index])
                return Choice(asked, index, tokens, self._text, opening)

            choices = Choices(asked, choice, width, begun, lambda: self._room.leave(owner), cached)
            stack.push_async_callback(choices.aclose)
            with self._metrics.stage("first_token"):
                first = await choices.next()
            self._counted.prompt_tokens.inc(len(asked.tokens))
            if asked.computes:
                if landed is None:
                    self._prompts.prompt(len(asked.tokens), reuse.tokens)
                else:
                    self._prompts.landed(len(asked.tokens), asked.kv_tokens - landed.held, landed.held)
            self._counted.first_token.observe((loop_now_ns() - asked.arrived_ns) / 1e9)
            response = await self._reply(request, asked, first, choices)
        return response

    def _tokens(self, asked: Asked, index: int, landed: LandedKV | None, reuse: Reuse) -> AsyncGenerator[Token, None]:
        if not asked.computes:
            return _nothing()
        return self._engine.generate(asked.tokens, asked.sampling_of(index), landed, reuse)

    async def _opening(self, asked: Asked) -> str | None:
        """An echoed prompt's text: as it came, or that of its ids."""
        request = asked.request
        if not isinstance(request, CompletionRequest) or not request.echo:
            return None
        if isinstance(request.prompt, str):
            return request.prompt
        return await self._text.off_loop(lambda: self._text.decode(asked.tokens), len(asked.tokens))

    async def _kv(self, asked: Asked, owner: str, stack: AsyncExitStack) -> tuple[Receiving | None, LandedKV | None]:
        if not asked.leg.do_remote_prefill or asked.kv_tokens < 1:
            return None, None
        holds = asked.computes and asked.sampling.prompt_logprobs is None
        receiving = await self._arrivals.begin(asked, lambda: self._room.hold(owner, asked.tokens) if holds else 0)
        stack.callback(receiving.cancel, "cancelled", "the decode leg ended")  # harmless after the end
        return receiving, await self._arrivals.landed(receiving)

    async def _reply(self, request: web.Request, asked: Asked, first: Piece, choices: Choices) -> web.StreamResponse:
        wanted = asked.request
        writer = AnswerWriter(asked.kind, request_id(request), self._model, int(time.time()), wanted.include_usage)
        replies = Replies(choices, writer, self._text, asked.deadline_ns)
        try:
            with self._metrics.stage("decode"):
                if wanted.stream:
                    response, reasons = await replies.stream(request, first)
                else:
                    response, reasons = await replies.whole(first)
        except StreamFailed as failed:
            cause = failed.__cause__
            known = isinstance(cause, RequestError)
            log.error("answer failed in mid-stream", error=str(cause), exc_info=None if known else cause)
            return failed.response
        finally:
            self._counted.generation_tokens.inc(choices.generated)
        for reason in reasons:
            self._counted.succeeded(reason)
        return response


async def _nothing() -> AsyncGenerator[Token, None]:
    yield Token(NO_TOKEN, "length")
