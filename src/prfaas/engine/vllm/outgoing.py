"""Transfers that leave this worker: offered, fed, followed to their end, and remembered for whoever asks.

It knows the sending side of a transport; it does not know vLLM or tensors. Lives on the mover's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from prfaas.core.errors import LocalError, PrfaasError
from prfaas.core.ids import Epoch, LinkName
from prfaas.core.transfer.extent import Extent
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.orders import Offer
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import Outcome, Sending, Transport

log = logging.getLogger(__name__)
REMEMBERED_S = 120.0
"""An ended transfer's outcome can be asked for so long, as its end is by the other side."""

Piece = tuple[Extent, memoryview]


class Outgoing:
    """Of one worker. `over` hears of each transfer's end, once: when the shares of all ranks that take from this one
    are over. One that fails ends the others."""

    def __init__(
        self,
        transport: Transport,
        deals: Deals,
        epoch: Epoch,
        lease_ns: int,
        tasks: Tasks,
        over: Callable[[str, Outcome], None],
    ) -> None:
        self._transport, self._deals, self._epoch, self._lease_ns = transport, deals, epoch, lease_ns
        self._tasks, self._over = tasks, over
        self._sendings: dict[str, dict[int, Sending]] = {}
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
        sendings: dict[int, Sending] = {}
        try:
            self._offer(order, sendings)
        except PrfaasError as error:
            _abort(sendings, "refused", str(error))
            self._end(order.transfer, Outcome("refused", str(error)))
            return
        if not sendings:  # nobody takes anything from this rank
            self._end(order.transfer, Outcome("applied"))
            return
        self._sendings[order.transfer] = sendings
        timer = loop.call_later(deadline_s, _abort, sendings, "deadline", "the request's deadline is past")
        self._tasks.spawn(self._follow(order.transfer, sendings, timer), f"send {order.transfer}")

    def put(self, transfer: str, to: int, pieces: Sequence[Piece]) -> None:
        """Have `pieces` leave for rank `to`. Harmless when the transfer is over."""
        sending = self._sendings.get(transfer, {}).get(to)
        if sending is not None:
            for extent, data in pieces:
                sending.put(extent, data)

    def finish(self, transfer: str) -> None:
        """All was put."""
        for sending in self._sendings.get(transfer, {}).values():
            sending.finish()

    def abort(self, transfer: str, code: str, detail: str) -> None:
        """Give it up. Harmless when it is over, or not ours."""
        _abort(self._sendings.get(transfer, {}), code, detail)

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

    def _offer(self, order: Offer, sendings: dict[int, Sending]) -> None:
        giving = self._deals.give(order.receivers)
        if giving.refusal:
            raise LocalError(giving.refusal)
        for to, layout in giving.layouts.items():
            name, link = giving.name(order.transfer, to), LinkName(order.link)
            sendings[to] = self._transport.offer(name, layout, order.length, link, self._lease_ns)

    async def _follow(self, transfer: str, sendings: dict[int, Sending], timer: asyncio.TimerHandle) -> None:
        async def one(sending: Sending) -> Outcome:
            outcome = await sending.released()
            if outcome.cause != "applied":
                _abort(sendings, outcome.cause, outcome.detail)
            return outcome

        outcomes = await asyncio.gather(*(one(sending) for sending in sendings.values()))
        timer.cancel()
        self._end(transfer, _together(outcomes))

    def _end(self, transfer: str, outcome: Outcome) -> None:
        self._sendings.pop(transfer, None)
        self._outcomes[transfer].set_result(outcome)
        asyncio.get_running_loop().call_later(REMEMBERED_S, self._outcomes.pop, transfer, None)
        if outcome.cause != "applied":
            log.warning("sending %s ended: %s: %s", transfer, outcome.cause, outcome.detail)
        self._over(transfer, outcome)


def _abort(sendings: Mapping[int, Sending], code: str, detail: str) -> None:
    for sending in sendings.values():
        sending.abort(code, detail)


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    """Of the shares of one transfer."""
    worst = next((one for one in outcomes if one.cause != "applied"), outcomes[0])
    moved = sum(one.bytes_moved for one in outcomes)
    return Outcome(worst.cause, worst.detail, moved, max(one.moving_ns for one in outcomes))
