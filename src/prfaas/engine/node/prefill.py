"""The prefill leg: compute a prompt's KV and hand it to whoever shows a ticket.

It knows room, engine and the sending side of a transport. It does not know HTTP or who receives. Blocks are held until
the receiver owns the bytes or the transfer is over, whatever becomes of the caller. What the prompt leaves is kept as
soon as it is computed, beside those blocks. A prefix that another cluster lends is fetched first. All of the prompt's
KV is put, what was kept first; the transport leaves out what the receiver holds.
"""

from __future__ import annotations

import asyncio

import structlog

from prfaas.core.errors import RequestError
from prfaas.core.ids import LinkName
from prfaas.core.routing.share import ShareClock
from prfaas.engine.base import Engine
from prfaas.engine.node.asked import Asked
from prfaas.engine.node.deadline import within
from prfaas.engine.node.fetching import Fetching
from prfaas.engine.node.room import Room
from prfaas.engine.reuse import Reuse
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import InHand, Outcome, Sending, Transport

log = structlog.get_logger(__name__)


class PrefillLeg:
    """Runs prefill legs of one node."""

    def __init__(
        self,
        engine: Engine,
        transport: Transport,
        room: Room,
        fetching: Fetching,
        tasks: Tasks,
        metrics: Metrics,
        lease_ns: int,
    ) -> None:
        self._engine, self._transport, self._room, self._fetching = engine, transport, room, fetching
        self._tasks, self._metrics, self._lease_ns = tasks, metrics, lease_ns
        self._offered: set[str] = set()
        self._clock = ShareClock()

    async def run(self, asked: Asked) -> tuple[Outcome, int | None, int]:
        """Returns when the receiver owns the KV: how it ended, and the ns of this node's time that computing it took,
        which several share evenly, None when that is not over; and how many tokens were not computed, but kept before.
        Cancelled, or past the deadline: the receiver is told, all is freed.

        Raises RequestError: 400 for a prompt without KV to hand over, or a receiver of several ranks, 409 for a
        transfer in hand, 502 "kv_transfer_failed" when the hand-over fails, 503 and 429 when there is no room, 504.
        """
        if asked.kv_tokens < 1:
            raise RequestError(
                "a prompt of one token has no KV to hand over", param="prompt", code="nothing_to_prefill"
            )
        if asked.leg.receivers > 1:
            said = f"this node's engine gives KV to one rank, not to the {asked.leg.receivers} of the receiver"
            raise RequestError(said, param="kv_transfer_params", code="layout_mismatch")
        owner = f"send {asked.transfer}"
        if owner in self._offered:
            raise RequestError(f"transfer {asked.transfer} is in hand already", status=409, code="duplicate_transfer")
        self._offered.add(owner)
        try:
            async with within(asked.deadline_ns):
                if asked.leg.prefix is not None:
                    await self._fetching.fetch(asked.leg.prefix, asked.tokens, asked.deadline_ns)
                wanted = self._room.prefixes.want(asked.kv_tokens, 1, asked.tokens)
                with self._metrics.stage("node_wait"):
                    reuse = await self._room.enter(owner, wanted)
        except BaseException:
            self._offered.discard(owner)
            raise
        cached = reuse.tokens
        return *await self._send(owner, asked, reuse), cached

    async def _send(self, owner: str, asked: Asked, reuse: Reuse) -> tuple[Outcome, int | None]:
        link = LinkName(asked.leg.link)
        try:
            sending = self._transport.offer(
                asked.transfer, self._engine.layout, asked.kv_tokens, link, self._lease_ns, reuse.tokens
            )
        except BaseException as error:
            self._offered.discard(owner)
            self._room.leave(owner)
            if isinstance(error, InHand):  # it holds nothing any more, but its connections are not all closed
                raise RequestError(str(error), status=409, code="duplicate_transfer") from None
            raise
        loop, spent_ns = asyncio.get_running_loop(), list[int]()
        compute = loop.create_task(self._compute(asked, sending, reuse, spent_ns), name=f"prefill {asked.transfer}")
        gone = loop.create_task(sending.released(), name=f"released {asked.transfer}")
        self._tasks.spawn(self._hold(owner, compute, gone), f"hold {asked.transfer}")
        try:
            async with within(asked.deadline_ns):
                outcome = await self._settle(sending, compute, gone)
                return outcome, spent_ns[0] if spent_ns else None
        except RequestError as error:
            sending.abort(error.code or "failed", error.message)
            raise
        except asyncio.CancelledError:
            sending.abort("cancelled", "the head hung up")
            raise
        except Exception:
            sending.abort("engine", "the engine failed")
            raise
        finally:
            compute.cancel()

    async def _compute(self, asked: Asked, sending: Sending, reuse: Reuse, spent_ns: list[int]) -> None:
        """Computes; `spent_ns` has the time that it took then."""
        began_ns = self._clock.begin(loop_now_ns())
        try:
            await self._engine.prefill(asked.tokens[:-1], sending, reuse)
        finally:
            spent_ns.append(self._clock.end(loop_now_ns()) - began_ns)

    async def _settle(self, sending: Sending, compute: asyncio.Task[None], gone: asyncio.Task[Outcome]) -> Outcome:
        with self._metrics.stage("prefill"):
            await asyncio.wait({compute, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not gone.done():
            compute.result()
            sending.finish()
        with self._metrics.stage("drain"):
            outcome = await asyncio.shield(gone)
        if outcome.cause != "applied":
            why = f"{outcome.cause}: {outcome.detail}" if outcome.detail else outcome.cause
            raise RequestError(
                f"handing over KV failed: {why}", status=502, kind="server_error", code="kv_transfer_failed"
            )
        return outcome

    async def _hold(self, owner: str, compute: asyncio.Task[None], gone: asyncio.Task[Outcome]) -> None:
        """Gives room back when nothing is computed or held any more."""
        try:
            await asyncio.wait({compute})
            if not compute.cancelled() and (error := compute.exception()) is not None:
                log.warning("prefill failed", owner=owner, error=repr(error))
            self._room.leave_slot(owner)
            await asyncio.wait({gone})
        finally:
            self._room.leave(owner)
            self._offered.discard(owner)
