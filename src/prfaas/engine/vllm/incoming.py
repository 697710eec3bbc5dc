"""Transfers that come to this worker: into credit, landed whole or failed, kept until the worker takes them.

It knows credit and the receiving side of a transport; it does not know vLLM or tensors. Lives on the mover's loop;
`take` alone is called from another thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from prfaas.core.errors import PrfaasError, RemoteError
from prfaas.core.ids import LinkName, TransferId
from prfaas.engine.node.credit import Credits
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.orders import Receive
from prfaas.engine.vllm.place import Place
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import LandedKV, Outcome, Peer, Receiving, Transport

log = logging.getLogger(__name__)


class Incoming:
    """Of one worker. `landed` hears that all of a transfer is here, `failed` that it will not be, and why; `over` how
    it ended."""

    def __init__(
        self,
        transport: Transport,
        deals: Deals,
        place: Place,
        credits: Credits,
        tasks: Tasks,
        landed: Callable[[str], None],
        failed: Callable[[str, str], None],
        over: Callable[[str, Outcome], None],
    ) -> None:
        self._transport, self._deals, self._place, self._credits = transport, deals, place, credits
        self._tasks = tasks
        self._tell_landed, self._tell_failed, self._tell_over = landed, failed, over
        self._tasks_by: dict[str, asyncio.Task[None]] = {}
        self._receivings: dict[str, Receiving] = {}
        self._landed: dict[str, LandedKV] = {}
        self._unwanted: set[str] = set()

    def receive(self, order: Receive, deadline_s: float) -> None:
        """Begin. What cannot be received has failed at once."""
        transfer, meant = order.params.transfer_id, order.params.epoch
        if meant not in (0, self._place.epoch):
            self._tell_failed(transfer, f"stale_epoch: for incarnation {meant}; this is {self._place.epoch}")
            return
        senders, here = len(order.params.remote), self._place.ranks
        told = order.params.receivers or senders
        refusal = self._deals.take(senders).refusal
        if told != here:
            refusal = f"tensor parallelism of {here} here, but the sender ({senders}) holds the KV for {told}"
        if refusal:
            self._tell_failed(transfer, f"layout: {refusal}")
            return
        self._tasks_by[transfer] = self._tasks.spawn(self._run(order, deadline_s), f"receive {transfer}")

    def take(self, transfer: str) -> LandedKV | None:
        """What landed, once; `applied` or `stop` must follow. None when it is gone. Thread-safe."""
        return self._landed.pop(transfer, None)

    def applied(self, transfer: str) -> None:
        """The engine has it."""
        receiving = self._receivings.get(transfer)
        if receiving is not None:
            receiving.applied()

    def discard(self, transfer: str) -> None:
        """Receive it for the sender's sake, and drop it."""
        if self.take(transfer) is not None:
            self.applied(transfer)
        elif transfer in self._tasks_by:
            self._unwanted.add(transfer)

    def stop(self, transfer: str, code: str, detail: str) -> None:
        """Give it up. Harmless when it is over, or not ours."""
        self.take(transfer)
        receiving = self._receivings.get(transfer)
        if receiving is not None:
            receiving.cancel(code, detail)
        elif transfer in self._tasks_by:
            self._tasks_by[transfer].cancel()  # it waits for credit

    async def _run(self, order: Receive, deadline_s: float) -> None:
        transfer = order.params.transfer_id
        deadline_ns = loop_now_ns() + int(deadline_s * 1e9)
        try:
            receiving = await self._begin(order, deadline_ns)
        except PrfaasError as error:
            self._tell_failed(transfer, str(error))
            return
        except TimeoutError:
            self._tell_failed(transfer, "deadline: no landing credit in time")
            return
        finally:
            if transfer not in self._receivings:
                self._forget(transfer)
        try:
            await self._land(transfer, receiving, deadline_ns)
            self._tell_over(transfer, await receiving.ended())
        finally:
            self._forget(transfer)
            self._credits.release(TransferId(transfer))

    async def _begin(self, order: Receive, deadline_ns: int) -> Receiving:
        params, transfer = order.params, TransferId(order.params.transfer_id)
        taking = self._deals.take(len(params.remote))
        # All of it, though less may cross: what was granted is what is used, and nobody need wait again.
        async with asyncio.timeout_at(deadline_ns / 1e9):
            await self._credits.use(transfer, self._deals.mine.bytes_at(order.length))
        try:
            receiving = self._transport.receive(
                taking.name(transfer),
                self._deals.mine,
                order.length,
                [Peer(params.remote[source].host, params.remote[source].port) for source in taking.sources],
                params.ticket,
                held=order.held,
                connections=params.connections,
                link=LinkName(params.link),
                deadline_ns=deadline_ns,
            )
        except BaseException:
            self._credits.release(transfer)
            raise
        self._receivings[transfer] = receiving
        return receiving

    async def _land(self, transfer: str, receiving: Receiving, deadline_ns: int) -> None:
        try:
            landed = await receiving.landed()
        except RemoteError as error:
            self._tell_failed(transfer, str(error))
            return
        if transfer in self._unwanted:
            receiving.applied()
            return
        self._landed[transfer] = landed
        loop = asyncio.get_running_loop()
        timer = loop.call_at(deadline_ns / 1e9, self._expired, transfer)
        self._tasks.spawn(self._disarm(receiving, timer), f"deadline of {transfer}")
        self._tell_landed(transfer)

    async def _disarm(self, receiving: Receiving, timer: asyncio.TimerHandle) -> None:
        await receiving.ended()
        timer.cancel()

    def _expired(self, transfer: str) -> None:
        if self.take(transfer) is not None:
            self.stop(transfer, "deadline", "the request's deadline is past")
            self._tell_failed(transfer, "deadline: landed, but there were no blocks for it in time")

    def _forget(self, transfer: str) -> None:
        self._tasks_by.pop(transfer, None)
        self._receivings.pop(transfer, None)
        self._landed.pop(transfer, None)
        self._unwanted.discard(transfer)
