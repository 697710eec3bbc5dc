"""The receiving half of a decode leg: KV comes into credit, whole or not at all.

It knows credit and the receiving side of a transport; it does not know engines or HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prfaas.core.errors import LocalError, RemoteError, RequestError
from prfaas.core.ids import LinkName
from prfaas.core.transfer.shards import rank_transfer, sources
from prfaas.engine.base import Engine
from prfaas.engine.node.asked import Asked
from prfaas.engine.node.credit import Credits
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import LandedKV, Peer, Receiving, Transport


class Arrivals:
    """Receives for one node."""

    def __init__(self, engine: Engine, transport: Transport, credits: Credits, tasks: Tasks, metrics: Metrics) -> None:
        self._engine, self._transport, self._credits = engine, transport, credits
        self._tasks, self._metrics = tasks, metrics

    async def begin(self, asked: Asked, hold: Callable[[], int]) -> Receiving:
        """Use the transfer's credit, or wait for some, and dial every rank that has something for us. `hold` says then
        how many tokens need not come, whose KV stays where it is.

        The credit is held until the transfer is over, and is for the whole KV, although only the increment lands: the
        head that asked for it cannot know what will be held then, and what is held may have to leave the KV memory
        while the rest lands, when it takes as many bytes as if it had landed too.

        Raises RequestError, 502 "kv_transfer_failed", when this engine cannot take it.
        """
        leg, transfer = asked.leg, asked.transfer
        name, remote = transfer, leg.remote
        if len(remote) > 1:
            try:
                remote = [leg.remote[rank] for rank in sources(self._engine.layout, len(remote), 1, 0)]
            except LocalError as error:
                raise RequestError(
                    f"receiving KV failed: layout: {error}",
                    status=502,
                    kind="server_error",
                    code="kv_transfer_failed",
                ) from None
            name = rank_transfer(transfer, 0, 1)
        await self._credits.use(transfer, self._engine.layout.bytes_at(asked.kv_tokens))
        try:
            receiving = self._transport.receive(
                name,
                self._engine.layout,
                asked.kv_tokens,
                [Peer(at.host, at.port) for at in remote],
                leg.ticket,
                held=hold(),
                connections=leg.connections,
                link=LinkName(leg.link),
                deadline_ns=asked.deadline_ns,
            )
        except BaseException:
            self._credits.release(transfer)
            raise
        self._tasks.spawn(self._hold(asked, receiving), f"receive {transfer}")
        return receiving

    async def landed(self, receiving: Receiving) -> LandedKV:
        """Waits for the KV. Raises RequestError, 502 "kv_transfer_failed" with the cause."""
        try:
            with self._metrics.stage("receive"):
                return await receiving.landed()
        except RemoteError as error:
            raise RequestError(
                f"receiving KV failed: {error}", status=502, kind="server_error", code="kv_transfer_failed"
            ) from None

    async def _hold(self, asked: Asked, receiving: Receiving) -> None:
        ended = asyncio.get_running_loop().create_task(receiving.ended())
        try:
            await ended
        finally:
            ended.cancel()
            self._credits.release(asked.transfer)
