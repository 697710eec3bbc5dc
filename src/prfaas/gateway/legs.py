"""The legs of requests: what the router's effects mean on the network.

It knows the decode nodes, the prefill sources and the open exchanges. It decides nothing: each leg ends by posting what
happened. A cancelled leg hangs up, which is how the other side learns that it may stop.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

import structlog

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.errors import PeerFailure, RemoteError, RequestError
from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId, TransferId, transfer_of
from prfaas.core.routing.effects import (
    AskCredit,
    CancelDecode,
    CancelPrefill,
    Decided,
    Ended,
    Refuse,
    Relay,
    ReleaseCredit,
    RequestEffect,
    StartDecode,
    StartPrefill,
)
from prfaas.core.routing.events import (
    CreditGranted,
    FirstToken,
    LegFailed,
    PrefillBound,
    PrefillDone,
    PrefillQueued,
)
from prfaas.core.routing.router import RouterEvent
from prfaas.gateway.begun import first_event
from prfaas.gateway.copying import Copying, patience_ms
from prfaas.gateway.exchange import Exchange, Upstream
from prfaas.gateway.sources import PrefillSource
from prfaas.runtime.client import Refused, read_bounded
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import background
from prfaas.wire.control import CreditRequest, PrefillRequest, PrefillUpdate, TransferParams
from prfaas.wire.openai import add_field

log = structlog.get_logger(__name__)
MAX_ANSWER_BYTES = 64 << 20
RELEASE_S = 5.0
STAGES = {"prefill": "prefill_leg", "decode": "decode_leg", "early release": "release"}
"""What a node calls `prefill` is computing; here it is a whole leg, with its queue and hand-over. Credit that is given
back when a prefill is bound may still be on its way when the router has it given back: each is a leg."""

LegKey = tuple[RequestId, int, str]


@dataclass(frozen=True, slots=True)
class LegSettings:
    """`credit_lease_ms`: how long unused landing room is kept. `layout(node)`: the KV layout of a decode node;
    `ranks(node)`: how many ranks it has."""

    model: str
    tenant: str
    credit_lease_ms: int
    layout: Callable[[NodeName], str]
    ranks: Callable[[NodeName], int]


@dataclass(frozen=True, slots=True)
class _Bound:
    """Where a prefill runs, and for how many ranks it was told to hold the KV."""

    link: LinkName
    receivers: int
    update: PrefillUpdate


class SourceFailed(PeerFailure):
    """A prefill source said itself that it failed, whatever the code: it was reached."""


class Legs:
    """Performs the router's effects. `decoders` are the clients of the nodes of the time being. `post` hands events to
    the router; `trouble(decided, leg, failure)` hears of peers that could not be reached."""

    def __init__(
        self,
        settings: LegSettings,
        decoders: Mapping[NodeName, NodeClient],
        sources: Mapping[ClusterName, PrefillSource],
        metrics: Metrics,
        post: Callable[[RouterEvent], None],
        trouble: Callable[[Decided, str, RemoteError], None],
    ) -> None:
        self.exchanges: dict[RequestId, Exchange] = {}
        self._settings = settings
        self._decoders = decoders
        self._sources = sources
        self._metrics = metrics
        self._post = post
        self._trouble = trouble
        self._copying = Copying(sources, metrics)
        self._tasks: dict[LegKey, asyncio.Task[None]] = {}
        self._bound: dict[RequestId, _Bound] = {}

    def perform(self, now_ns: int, effect: RequestEffect) -> None:
        """Start, cancel or answer, as `effect` says; returns at once."""
        exchange = self.exchanges[effect.request]
        match effect:
            case Decided():
                exchange.decided = effect
                for signal in effect.unknown:
                    self._metrics.signal_unknown(signal)
                if effect.copy is not None:
                    self._metrics.longer_prefix(effect.copy.reason)
                log.info("decided", **_logged(effect))
            case AskCredit(request, attempt, node):
                self._start((request, attempt, "credit"), self._credit(exchange, attempt, node))
            case ReleaseCredit(request, attempt, node):
                self._cancel((request, attempt, "credit"))
                self._start((request, attempt, "release"), self._release(request, attempt, node))
            case StartPrefill(request, attempt):
                self._start((request, attempt, "prefill"), self._prefill(exchange, effect))
            case StartDecode(request, attempt):
                self._start((request, attempt, "decode"), self._decode(exchange, effect))
            case CancelPrefill(request, attempt):
                self._cancel((request, attempt, "prefill"))
            case CancelDecode(request, attempt):
                self._cancel((request, attempt, "decode"))
            case Relay():
                exchange.relay()
            case Refuse(_, status, code, message):
                kind = "invalid_request_error" if status < 500 else "server_error"
                retry = 1 if status in (429, 503) else None
                exchange.refuse(RequestError(message, status=status, kind=kind, code=code, retry_after_s=retry))
            case Ended(request, route, outcome):
                self._metrics.request_ended(route, outcome)
                self._bound.pop(request, None)
                del self.exchanges[request]
            case _:
                assert_never(effect)

    async def close(self) -> None:
        """End every leg."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, key: LegKey, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(self._leg(key, work), name="/".join(map(str, key)))
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._over(key, task))
        task.add_done_callback(lambda _: work.close())  # a leg that is cancelled before its first step never began it

    def _over(self, key: LegKey, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]

    def _cancel(self, key: LegKey) -> None:
        task = self._tasks.get(key)
        if task is not None:
            task.cancel()

    async def _leg(self, key: LegKey, work: Coroutine[Any, Any, None]) -> None:
        """Runs one leg; whatever it raises becomes one LegFailed."""
        request, attempt, leg = key
        started_ns = loop_now_ns()
        try:
            await work
            self._metrics.stage_took(STAGES.get(leg, leg), loop_now_ns() - started_ns)
        except Refused as refused:
            fatal = leg == "decode" and 400 <= refused.status < 500 and refused.status not in (408, 409, 425, 429)
            status = refused.status if fatal or refused.status == 504 else 502
            event = LegFailed(request, attempt, leg, refused.code, refused.detail, fatal or status == 504, status)
            self._lost(event, refused)
        except RemoteError as failure:
            self._lost(LegFailed(request, attempt, leg, failure.code, failure.detail), failure)
        except Exception as bug:
            log.exception("leg broke", leg="/".join(map(str, key)))
            self._post(LegFailed(request, attempt, leg, "internal", f"{type(bug).__name__} in the gateway", True, 500))

    def _lost(self, event: LegFailed, failure: RemoteError) -> None:
        exchange = self.exchanges.get(event.request)
        decided = exchange.decided if exchange is not None else None
        # As in "decided": the clusters that were to prefill and the node that was to decode, not who says so.
        where = {} if decided is None else {"cluster": decided.cluster, "node": decided.node}
        log.warning(
            "leg failed",
            request=event.request,
            attempt=event.attempt,
            leg=event.leg,
            code=event.code,
            detail=event.detail,
            **where,
        )
        reached = isinstance(failure, SourceFailed) or failure.code != "unreachable"
        if decided is not None and not reached:
            self._trouble(decided, event.leg, failure)
        self._post(event)

    def _node(self, node: NodeName) -> NodeClient:
        client = self._decoders.get(node)
        if client is None:
            raise PeerFailure("node_lost", f"{node} is no member any more")
        return client

    def _left_ms(self, exchange: Exchange) -> int:
        return max(1, (exchange.deadline_ns - loop_now_ns()) // 1_000_000)

    async def _credit(self, exchange: Exchange, attempt: int, node: NodeName) -> None:
        left_ms = self._left_ms(exchange)
        wanted = CreditRequest(
            transfer_of(exchange.request, attempt), exchange.prompt.tokens, min(left_ms, self._settings.credit_lease_ms)
        )
        reply = await self._node(node).credit(wanted, left_ms / 1000)
        self._post(CreditGranted(exchange.request, attempt, reply.receiver, reply.kv_bytes))

    async def _release(self, request: RequestId, attempt: int, node: NodeName) -> None:
        # The lease frees it all the same when this call does not get through.
        with contextlib.suppress(RemoteError):
            await self._node(node).release_credit(transfer_of(request, attempt), RELEASE_S)

    async def _prefill(self, exchange: Exchange, start: StartPrefill) -> None:
        request, attempt, decided = start.request, start.attempt, exchange.decided
        assert decided is not None
        copy = decided.copy if decided.copy is not None and decided.copy.made else None
        asked = PrefillRequest(
            transfer_id=transfer_of(request, attempt),
            tenant=self._settings.tenant,
            model=self._settings.model,
            layout=self._settings.layout(decided.node),
            receiver=start.receiver,
            link=start.link,
            tokens=exchange.prompt.ids,
            prompt_tokens=exchange.prompt.tokens,
            deadline_ms=self._left_ms(exchange),
            receivers=self._settings.ranks(decided.node),
            prefer=list(exchange.cached.holders.get(start.cluster, ())),
            prefix_tokens=copy.tokens if copy is not None else 0,
            prefix_ms=patience_ms(copy),
        )
        asked_ns = loop_now_ns()
        async with (
            background() as also,
            contextlib.aclosing(self._sources[start.cluster].prefill(asked)) as updates,
        ):
            async for update in updates:
                match update.state:
                    case "queued":
                        self._post(PrefillQueued(request, attempt, update.position))
                    case "bound":
                        self._metrics.stage_took("queue", loop_now_ns() - asked_ns)
                        self._bound[request] = _Bound(start.link, asked.receivers, update)
                        if update.parameters is not None:  # its engine fetches for itself: nothing lands in credit
                            release = self._release(request, attempt, decided.node)
                            self._start((request, attempt, "early release"), release)
                        if copy is not None:
                            transfer, tokens = TransferId(asked.transfer_id), exchange.prompt.ids
                            also(self._copying.run(copy, start.cluster, transfer, update.node, asked.layout, tokens))
                        self._post(PrefillBound(request, attempt, update.node))
                    case "done":
                        self._post(PrefillDone(request, attempt))
                    case "failed":
                        raise SourceFailed(update.code, f"prefill in {start.cluster}: {update.detail}")

    async def _decode(self, exchange: Exchange, start: StartDecode) -> None:
        request, attempt = start.request, start.attempt
        client, asked_ns = self._node(start.node), loop_now_ns()
        params = self._handover(exchange, start, client)
        body = add_field(exchange.body, "kv_transfer_params", params) if params else exchange.body
        try:
            async with client.post(exchange.path, body) as response:
                begun = await (first_event(response) if exchange.stream else read_bounded(response, MAX_ANSWER_BYTES))
                exchange.upstream = upstream = Upstream(attempt, response, begun, exchange.stream, asyncio.Event())
                # What is not streamed is here when all of it is.
                self._metrics.stage_took("first_token" if exchange.stream else "answer", loop_now_ns() - asked_ns)
                self._post(FirstToken(request, attempt))
                await upstream.relayed.wait()
        except Refused as refused:
            if start.handover and refused.status >= 500 and not client.tells_cause:
                raise PeerFailure("kv_transfer_failed", refused.detail) from None
            raise

    def _handover(self, exchange: Exchange, start: StartDecode, client: NodeClient) -> dict[str, Any]:
        left_ms = self._left_ms(exchange)
        if not start.handover:
            return client.parameters(TransferParams(transfer_of(start.request, start.attempt), deadline_ms=left_ms))
        known = self._bound[start.request]
        bound = known.update
        if bound.parameters is not None:
            return bound.parameters
        params = TransferParams(
            transfer_id=transfer_of(start.request, start.attempt),
            do_remote_prefill=True,
            link=known.link,
            remote=bound.remote,
            ticket=bound.ticket,
            connections=bound.connections,
            prompt_tokens=exchange.prompt.tokens,
            prompt_hash=exchange.prompt.hash,
            deadline_ms=left_ms,
            receivers=known.receivers,
        )
        return client.parameters(params)


def _logged(decided: Decided) -> dict[str, Any]:
    """As the log has it: flat, and what becomes of a longer prefix only where there is one."""
    said = {name: getattr(decided, name) for name in Decided.__slots__ if name not in ("at_ns", "copy")}
    copy = decided.copy
    if copy is not None:
        said |= {"copy": copy.reason, "copy_from": copy.cluster, "copy_tokens": copy.tokens}
    return said
