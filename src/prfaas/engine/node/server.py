"""A node's endpoints: the node protocol of `wire.control` over one engine and one transport.

It wires and routes; what a leg does is in `prefill` and `decode`. Nodes are internal: with a secret, all endpoints but
/health and /metrics demand it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiohttp import web

from prfaas.core.errors import InvariantError, RequestError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.shards import fixed_part
from prfaas.engine.base import Engine, Limits
from prfaas.engine.node.arrival import Arrivals
from prfaas.engine.node.asked import Asked, transfer_params, understand
from prfaas.engine.node.capacity import pool_blocks, within_memory
from prfaas.engine.node.counted import PrefixMetrics
from prfaas.engine.node.credit import Credits
from prfaas.engine.node.deadline import within
from prfaas.engine.node.decode import Answering
from prfaas.engine.node.fetching import Fetching
from prfaas.engine.node.identity import Identity, NodeLimits
from prfaas.engine.node.lending import Lending
from prfaas.engine.node.prefill import PrefillLeg
from prfaas.engine.node.prefixes import Prefixes, placement_of
from prfaas.engine.node.promises import Promises
from prfaas.engine.node.room import Room
from prfaas.engine.node.telling import Telling
from prfaas.engine.reuse import spec_of
from prfaas.model.text import Text
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.http import (
    Listening,
    json_bytes_reply,
    json_reply,
    make_app,
    read_body,
    request_id,
    serve,
)
from prfaas.runtime.metrics import CONTENT_TYPE, EngineMetrics, Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import Transport
from prfaas.wire.control import Address, NodeInfo
from prfaas.wire.layout import layout_name
from prfaas.wire.openai import (
    AnswerWriter,
    AnyRequest,
    Finished,
    Kind,
    ModelCard,
    ModelList,
    parse_chat,
    parse_completion,
    usage,
)
from prfaas.wire.openai.prompt import parsed

log = structlog.get_logger(__name__)
DEFAULT_LIMITS = NodeLimits()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NodeServer:
    """One node. `start` listens, then loads the engine; `close` gives everything back.

    `doors`: what it answers because of its engine; `prefill_ns`: what it says of its times, see `NodeInfo`. `telling`
    is told what prefixes it keeps, `kv_events` says where it is asked about that. `tasks` is watched by whoever runs
    the node: a failure in it ends the program.
    """

    def __init__(
        self,
        engine: Engine,
        text: Text,
        transport: Transport,
        identity: Identity,
        limits: NodeLimits = DEFAULT_LIMITS,
        secret: str | None = None,
        metrics: Metrics | None = None,
        doors: Sequence[web.RouteDef] = (),
        prefill_ns: Sequence[tuple[int, int]] = (),
        telling: Telling | None = None,
        kv_events: Sequence[Address] = (),
    ) -> None:
        self._doors, self._prefill_ns = doors, list(prefill_ns)
        self._telling, self._kv_events = telling, list(kv_events)
        self._engine, self._text, self._transport = engine, text, transport
        self._identity, self._limits, self._secret = identity, limits, secret
        self.tasks = Tasks()
        self.metrics = metrics or Metrics()
        self._counted = EngineMetrics(self.metrics.registry, identity.model)
        self._prompts = PrefixMetrics(self.metrics.registry, identity.model)
        self._credits = Credits(limits.landing_buffer_bytes, limits.queue_length)
        self._takes: Limits | None = None
        self._room: Room | None = None
        self._prefill: PrefillLeg | None = None
        self._answering: Answering | None = None
        self._lending: Lending | None = None
        self._copies = False
        self._layout = ""
        self._started_s = int(time.time())
        self._listening: Listening | None = None

    @property
    def blocks_in_use(self) -> int:
        """KV blocks that sequences and transfers hold."""
        return self._room.blocks_in_use if self._room else 0

    @property
    def transfers_in_use(self) -> int:
        """Transfers that hold anything here, a credit that waits for its transfer included."""
        return self._transport.in_use + self._credits.unused

    @property
    def _ready(self) -> Limits:
        if self._takes is None:
            raise InvariantError("asked before the node was ready")
        return self._takes

    async def start(self, host: str, port: int) -> Listening:
        """Listen (/health says 503), load the engine, serve. Raises OSError, or ConfigError of the engine."""
        self._listening = await serve(self._app(), host, port)
        await self._engine.start()
        limits, memory_bytes = self._engine.limits, self._limits.kv_memory_bytes
        if memory_bytes is not None:
            limits = within_memory(limits, self._engine.layout, memory_bytes)
        if limits.max_model_len < self._engine.limits.max_model_len:
            log.warning("KV memory bounds the context", tokens=limits.max_model_len, memory_bytes=memory_bytes)
        self._takes = limits
        self._text.vocab_size = min(self._text.vocab_size, limits.vocab_size)
        spec = spec_of(self._engine.layout, limits.block_tokens) if self._limits.prefix_cache else None
        blocks = pool_blocks(limits, self._engine.layout, spec, memory_bytes)
        prefixes = Prefixes(
            spec,
            limits.block_tokens,
            blocks,
            copies=limits.copies_prefix,
            placement=placement_of(limits, spec),
            telling=self._telling,
        )
        room = Room(prefixes, limits.kv_blocks, limits.max_sequences, self._limits.queue_length)
        arrivals = Arrivals(self._engine, self._transport, self._credits, self.tasks, self.metrics)
        lease_ns = self._limits.transfer_lease_ns
        fetching = Fetching(self._engine, self._transport, self._credits, room, self.tasks, self.metrics, self._prompts)
        self._prefill = PrefillLeg(self._engine, self._transport, room, fetching, self.tasks, self.metrics, lease_ns)
        self._answering = Answering(
            self._engine,
            self._text,
            arrivals,
            room,
            self.metrics,
            self._counted,
            self._prompts,
            self._identity.model,
        )
        self.metrics.watch_node(self._identity.name, lambda: self.blocks_in_use, lambda: self.transfers_in_use)
        self._prompts.watch(self._identity.name, lambda: prefixes.prefix_blocks)
        self._counted.watch(lambda: self._engine.running, lambda: room.waiting, lambda: room.usage)
        self._layout = layout_name(self._engine.layout)
        self._lending = Lending(
            self._engine,
            self._text,
            self._transport,
            room,
            self.tasks,
            self._prompts,
            layout=self._layout,
            epoch=self._identity.epoch,
            lease_ns=lease_ns,
            longest_ns=self._limits.deadline_ns,
        )
        self._copies = prefixes.copyable
        self._room = room
        log.info("ready", node=self._identity.name, role=self._identity.role, url=self._listening.url)
        return self._listening

    async def close(self) -> None:
        """Stop listening, end what runs, free all. Harmless before `start`."""
        if self._listening is not None:
            await self._listening.close()
        await self._transport.close()
        self._credits.close()
        await self._engine.close()
        await self.tasks.close()
        self._text.close()

    def _app(self) -> web.Application:
        keys = (self._secret,) if self._secret else ()
        app = make_app(max_body_bytes=self._limits.max_body_bytes, keys=keys)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics_text)
        for method, path, handler in (
            ("GET", "/v1/models", self._models),
            ("POST", "/v1/completions", self._completions),
            ("POST", "/v1/chat/completions", self._chat),
            ("GET", "/prfaas/v1/node", self._node),
            ("POST", "/prfaas/v1/prefix", self._lend),
        ):
            app.router.add_route(method, path, self._when_ready(handler))
        promises = Promises(self._credits, self._transport.pace, lambda: self._engine.layout, self._identity.name)
        for route in promises.routes():
            app.router.add_route(route.method, route.path, self._when_ready(route.handler))
        app.router.add_routes(self._doors)
        return app

    def _when_ready(self, handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            if self._room is None:
                raise RequestError(
                    "the model is being loaded", status=503, kind="server_error", code="starting", retry_after_s=1
                )
            return await handler(request)

        return checked

    async def _health(self, request: web.Request) -> web.StreamResponse:
        ready = self._room is not None
        return json_reply({"status": "ok" if ready else "starting"}, 200 if ready else 503)

    async def _metrics_text(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _models(self, request: web.Request) -> web.StreamResponse:
        card = ModelCard(self._identity.model, self._started_s, self._ready.max_model_len)
        return json_reply(ModelList([card]))

    def info(self) -> NodeInfo:
        """What the node says of itself. Only once it is ready."""
        who, limits = self._identity, self._ready
        return NodeInfo(
            node=who.name,
            cluster=who.cluster,
            role=who.role,
            epoch=who.epoch,
            model=who.model,
            layout=self._layout,
            max_model_len=limits.max_model_len,
            max_sequences=limits.max_sequences,
            data=[Address(peer.host, peer.port) for peer in who.data],
            running=self._engine.running,
            blocks_in_use=self.blocks_in_use,
            transfers_in_use=self.transfers_in_use,
            fixed=fixed_part(self._engine.layout),
            prefill_ns=self._prefill_ns,
            kv_events=self._kv_events,
            copies=self._copies,
        )

    async def _lend(self, request: web.Request) -> web.StreamResponse:
        assert self._lending is not None
        return await self._lending.answer(request)

    async def _node(self, request: web.Request) -> web.StreamResponse:
        return json_reply(self.info())

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._legs(request, "completion", parse_completion)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._legs(request, "chat", parse_chat)

    async def _legs(self, request: web.Request, kind: Kind, parse: Callable[[bytes], AnyRequest]) -> web.StreamResponse:
        """Which leg it is, and that one. A hand-over's credit is gone when the request is refused before it is used."""
        arrived_ns, body = loop_now_ns(), await read_body(request)
        wanted = await parsed(parse, body, self._text)
        leg = transfer_params(wanted.kv_transfer_params)
        deadline_ns = arrived_ns + (leg.deadline_ms * 10**6 or self._limits.deadline_ns)
        try:
            if wanted.model != self._identity.model:
                said = f"the model {wanted.model[:80]!r} does not exist"
                raise RequestError(said, status=404, param="model", code="model_not_found")
            if leg.epoch not in (0, self._identity.epoch):
                said = f"for incarnation {leg.epoch} of {self._identity.name}; this is {self._identity.epoch}"
                raise RequestError(said, status=409, code="stale_epoch")
            async with within(deadline_ns):
                asked = await understand(kind, wanted, leg, self._text, self._ready, arrived_ns, deadline_ns)
            if leg.do_remote_decode:
                return await self._prefill_reply(request, asked)
            assert self._answering is not None
            return await self._answering.run(request, asked)
        finally:
            if not leg.do_remote_decode:
                self._credits.give_up(TransferId(leg.transfer_id))

    async def _prefill_reply(self, request: web.Request, asked: Asked) -> web.StreamResponse:
        assert self._prefill is not None
        outcome, computed_ns, cached = await self._prefill.run(asked)
        prompt = len(asked.tokens)
        self._counted.prompt_tokens.inc(prompt)
        self._prompts.prompt(asked.kv_tokens, cached)
        self._counted.succeeded("length")
        writer = AnswerWriter(asked.kind, request_id(request), self._identity.model, int(time.time()))
        about = {
            "transfer_id": asked.transfer,
            "outcome": outcome.cause,
            "bytes": outcome.bytes_moved,
            "moving_ns": outcome.moving_ns,
            "computed_ns": computed_ns,
        }
        return json_bytes_reply(writer.whole([Finished("", "length")], usage(prompt, 0, cached), about))
