"""Transfers that leave this worker: offered, fed, followed to their end, and remembered for whoever asks.

It knows the sending side of a transport; it does not know vLLM or tensors. Lives on the mover's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import PrfaasError
from prfaas.core.ids import Epoch, LinkName, TransferId
from prfaas.core.transfer.extent import Extent
from prfaas.engine.vllm.orders import Offer
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import Outcome, Sending, Transport

log = logging.getLogger(__name__)
REMEMBERED_S = 120.0
"""An ended transfer's outcome can be asked for so long, as its end is by the other side."""

Piece = tuple[Extent, memoryview]


class Outgoing:
    """Of one worker. `over` hears of each transfer's end, once."""

    def __init__(
        self,
        transport: Transport,
        layout: KVLayout,
        epoch: Epoch,
        lease_ns: int,
        tasks: Tasks,
        over: Callable[[str, Outcome], None],
    ) -> None:
        self._transport, self._layout, self._epoch, self._lease_ns = transport, layout, epoch, lease_ns
        self._tasks, self._over = tasks, over
        self._sendings: dict[str, Sending] = {}
        self._outcomes: dict[str, asyncio.Future[Outcome]] = {}
        self._offered = asyncio.Condition()

    def offer(self, order: Offer, deadline_s: float) -> None:
        """Begin. What cannot be offered is over at once."""
        if order.transfer in self._outcomes:
            log.error("transfer %s was offered before", order.transfer)
            return
        loop = asyncio.get_running_loop()
        self._outcomes[order.transfer] = loop.create_future()
        self._tasks.spawn(self._announce(), "announce an offer")
        if order.epoch not in (0, self._epoch):
            said = f"for incarnation {order.epoch}; this is {self._epoch}"
            self._end(order.transfer, Outcome("stale_epoch", said))
            return
        try:
            sending = self._transport.offer(
                TransferId(order.transfer), self._layout, order.length, LinkName(order.link), self._lease_ns
            )
        except PrfaasError as error:
            self._end(order.transfer, Outcome("refused", str(error)))
            return
        self._sendings[order.transfer] = sending
        timer = loop.call_later(deadline_s, sending.abort, "deadline", "the request's deadline is past")
        self._tasks.spawn(self._follow(order.transfer, sending, timer), f"send {order.transfer}")

    def put(self, transfer: str, pieces: Sequence[Piece]) -> None:
        """Have `pieces` leave. Harmless when the transfer is over."""
        sending = self._sendings.get(transfer)
        if sending is not None:
            for extent, data in pieces:
                sending.put(extent, data)

    def finish(self, transfer: str) -> None:
        """All was put."""
        sending = self._sendings.get(transfer)
        if sending is not None:
            sending.finish()

    def abort(self, transfer: str, code: str, detail: str) -> None:
        """Give it up. Harmless when it is over, or not ours."""
        sending = self._sendings.get(transfer)
        if sending is not None:
            sending.abort(code, detail)

    async def outcome(self, transfer: str, wait_s: float) -> Outcome | None:
        """Waits until `transfer` is over; at most `wait_s` for its offer: then None."""
        if transfer not in self._outcomes:
            try:
                async with asyncio.timeout(wait_s), self._offered:
                    await self._offered.wait_for(lambda: transfer in self._outcomes)
            except TimeoutError:
                return None
        return await asyncio.shield(self._outcomes[transfer])

    async def _announce(self) -> None:
        async with self._offered:
            self._offered.notify_all()

    async def _follow(self, transfer: str, sending: Sending, timer: asyncio.TimerHandle) -> None:
        outcome = await sending.released()
        timer.cancel()
        self._end(transfer, outcome)

    def _end(self, transfer: str, outcome: Outcome) -> None:
        self._sendings.pop(transfer, None)
        self._outcomes[transfer].set_result(outcome)
        asyncio.get_running_loop().call_later(REMEMBERED_S, self._outcomes.pop, transfer, None)
        if outcome.cause != "applied":
            log.warning("sending %s ended: %s: %s", transfer, outcome.cause, outcome.detail)
        self._over(transfer, outcome)
