"""Fetching: a prefix that a node of another cluster keeps is received and kept here, before a prompt is computed.

It knows room, landing credit, engine and the receiving side of a transport; it does not know why it pays. Nothing that
goes wrong here is an error: the prompt is computed. Nobody waits for room, and nothing is waited for longer than
computing would take. What is on its way lands in the node's landing buffer, as a decode leg's KV does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.errors import RemoteError, RequestError
from prfaas.core.ids import LinkName, TransferId
from prfaas.core.transfer.extent import extent_bytes, needed
from prfaas.engine.base import Engine
from prfaas.engine.node.counted import PrefixMetrics
from prfaas.engine.node.credit import Credits
from prfaas.engine.node.room import Room
from prfaas.engine.reuse import Reuse
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import Peer, Receiving, Transport
from prfaas.wire.control import PrefixSource

log = structlog.get_logger(__name__)


class Fetching:
    """Fetches for one node."""

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        credits: Credits,
        room: Room,
        tasks: Tasks,
        metrics: Metrics,
        counted: PrefixMetrics,
    ) -> None:
        self._engine, self._transport, self._credits, self._room = engine, transport, credits, room
        self._tasks, self._metrics, self._counted = tasks, metrics, counted

    async def fetch(self, source: PrefixSource, tokens: Sequence[int], deadline_ns: int) -> str:
        """Returns when the prefix of `tokens` is kept here, or will not be: `ok`, `held` (it was here), or why not, in
        one word. Past `deadline_ns`, or `source`'s own, it gives up: `late`. Cancelled, all is given back.
        """
        until_ns = min(deadline_ns, loop_now_ns() + source.deadline_ms * 10**6)
        detail = ""
        try:
            with self._metrics.stage("prefix_fetch"):
                async with asyncio.timeout_at(until_ns / 1e9):
                    outcome = await self._fetch(source, tokens, until_ns)
        except TimeoutError:
            outcome = "late"
        except RemoteError as failure:
            outcome, detail = "late" if failure.code == "deadline" else failure.code, failure.detail
        except RequestError as refused:
            outcome, detail = refused.code or "refused", refused.message
        except asyncio.CancelledError:
            self._counted.copied("fetched", "cancelled")
            raise
        except Exception as bug:
            log.exception("fetching a prefix broke", transfer=source.transfer_id)
            outcome, detail = "internal", type(bug).__name__
        self._counted.copied("fetched", outcome)
        log.info("prefix", transfer=source.transfer_id, tokens=source.length, outcome=outcome, detail=detail)
        return outcome

    async def _fetch(self, source: PrefixSource, tokens: Sequence[int], until_ns: int) -> str:
        first, owner = tokens[: source.length], f"fetch {source.transfer_id}"
        wanted = self._room.prefixes.want_fetched(first) if source.length < len(tokens) else None
        if wanted is None:
            return "useless"
        reuse = self._room.enter_now(owner, wanted)
        if reuse is None:
            return "no_room"
        try:
            if reuse.tokens >= source.length:
                return "held"
            if self._room.prefixes.stateful and not reuse.allowed:
                return "no_room"  # for rows, but not for the snapshot without which nothing of it is kept
            await self._receive(source, first, reuse, until_ns)
        finally:
            self._room.leave(owner)  # what came is kept
        return "ok" if self._room.prefixes.kept(wanted) else "no_room"  # others may have taken the snapshot's room

    async def _receive(self, source: PrefixSource, first: Sequence[int], reuse: Reuse, until_ns: int) -> None:
        layout, transfer = self._engine.layout, TransferId(source.transfer_id)
        held = held_of(layout, source.length, reuse.tokens)
        parts = {(part.layer, part.name): part for part in layout.parts}
        wanted = needed(layout, source.length, held)
        await self._credits.use(transfer, sum(extent_bytes(parts[one.layer, one.part], one) for one in wanted))
        try:
            receiving = self._transport.receive(
                transfer,
                layout,
                source.length,
                [Peer(at.host, at.port) for at in source.remote],
                source.ticket,
                held=held,
                connections=source.connections,
                link=LinkName(source.link),
                deadline_ns=until_ns,
            )
        except BaseException:
            self._credits.release(transfer)
            raise
        self._tasks.spawn(self._hold(transfer, receiving), f"fetch {transfer}")
        try:
            landed = await receiving.landed()
            await self._engine.adopt(first, landed, reuse)
            landed.parts.clear()
            receiving.applied()
        finally:
            receiving.cancel("cancelled", "the prefix is not wanted any more")  # harmless after the end

    async def _hold(self, transfer: TransferId, receiving: Receiving) -> None:
        """The landing buffer has the bytes until the transfer is over."""
        ended = asyncio.get_running_loop().create_task(receiving.ended())
        try:
            await ended
        finally:
            ended.cancel()
            self._credits.release(transfer)


def held_of(layout: KVLayout, length: int, kept: int) -> int:
    """What to tell the sender that is here, of a prefix of `length` tokens of which the first `kept` are: none where a
    window reaches back into them, since its rows are kept only as part of a snapshot."""
    windows = [part for part in layout.parts if part.kind is PartKind.WINDOW]
    return kept if all(part.first_row(length) >= kept for part in windows) else 0
