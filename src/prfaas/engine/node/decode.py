"""Answering a request: alone, or as the decode leg of a hand-over.

It knows arrivals, room, engine and answers, and their order: KV lands in credit, then room is taken, then the engine
copies it and the first token exists; only then does an answer begin, so that a head may try elsewhere until then.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import structlog
from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.engine.base import Engine
from prfaas.engine.node.answer import Piece, Pieces, StreamFailed, reply_stream, reply_whole
from prfaas.engine.node.arrival import Arrivals
from prfaas.engine.node.asked import Asked
from prfaas.engine.node.deadline import within
from prfaas.engine.node.room import Room
from prfaas.model.text import Text
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.http import request_id
from prfaas.runtime.metrics import EngineMetrics, Metrics
from prfaas.transport.base import LandedKV, Receiving
from prfaas.wire.openai import AnswerWriter

log = structlog.get_logger(__name__)


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
        model: str,
    ) -> None:
        self._engine, self._text, self._arrivals, self._room = engine, text, arrivals, room
        self._metrics, self._counted, self._model = metrics, counted, model
        self._sequence = 0

    async def run(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        """The answer. Whatever happens, all that it held is given back.

        Raises RequestError before anything was sent: 502 "kv_transfer_failed", 503, 429, 504.
        """
        self._sequence += 1
        owner = f"sequence {self._sequence}"
        async with AsyncExitStack() as stack:
            async with within(asked.deadline_ns):
                receiving, landed = await self._kv(asked, stack)
                with self._metrics.stage("node_wait"):
                    await self._room.enter(owner, asked.room_tokens)
                stack.callback(self._room.leave, owner)
            tokens = self._engine.generate(asked.tokens, asked.sampling, landed)
            stack.push_async_callback(tokens.aclose)
            stream = self._text.stream(asked.request.stops)
            pieces = Pieces(tokens, stream, len(asked.tokens), asked.deadline_ns)
            with self._metrics.stage("first_token"):
                first = await pieces.next()
            if receiving is not None and landed is not None:
                receiving.applied()
                landed.parts.clear()  # copied: whoever still holds `landed` holds no more memory than was credited
            self._counted.prompt_tokens.inc(len(asked.tokens))
            self._counted.first_token.observe((loop_now_ns() - asked.arrived_ns) / 1e9)
            response = await self._reply(request, asked, first, pieces)
        return response

    async def _kv(self, asked: Asked, stack: AsyncExitStack) -> tuple[Receiving | None, LandedKV | None]:
        if not asked.leg.do_remote_prefill or asked.kv_tokens < 1:
            return None, None
        receiving = await self._arrivals.begin(asked)
        stack.callback(receiving.cancel, "cancelled", "the decode leg ended")  # harmless after the end
        return receiving, await self._arrivals.landed(receiving)

    async def _reply(self, request: web.Request, asked: Asked, first: Piece, pieces: Pieces) -> web.StreamResponse:
        wanted = asked.request
        writer = AnswerWriter(asked.kind, request_id(request), self._model, int(time.time()), wanted.include_usage)
        try:
            with self._metrics.stage("decode"):
                if wanted.stream:
                    response, finish = await reply_stream(request, first, pieces, writer)
                else:
                    response, finish = await reply_whole(first, pieces, writer)
        except StreamFailed as failed:
            cause = failed.__cause__
            known = isinstance(cause, RequestError)
            log.error("answer failed in mid-stream", error=str(cause), exc_info=None if known else cause)
            return failed.response
        finally:
            self._counted.generation_tokens.inc(pieces.generated)
        self._counted.succeeded(finish)
        return response
