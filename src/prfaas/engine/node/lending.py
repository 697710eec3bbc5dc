"""Lending: a prefix that this node keeps is sent to a node of another cluster, which would else compute it.

It knows room, engine and the sending side of a transport, and the endpoint; it does not know who chose the receiver.
The prefix stays where it is, pinned until the receiver owns the bytes or the loan is over, whatever becomes of the
caller. Nobody waits for room here: a node that has none lends nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import structlog
from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.core.ids import LinkName, TransferId
from prfaas.core.transfer.shards import whole_transfer
from prfaas.engine.base import Engine
from prfaas.engine.node.asked import MAX_ID_CHARS
from prfaas.engine.node.counted import PrefixMetrics
from prfaas.engine.node.room import Room
from prfaas.engine.reuse import Reuse
from prfaas.model.text import Text
from prfaas.runtime.client import line_bytes
from prfaas.runtime.http import read_json
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import InHand, Outcome, Sending, Transport
from prfaas.wire.control import PrefixRequest, PrefixUpdate

log = structlog.get_logger(__name__)
MOST = 16
"""Loans at once. Each is a prefix that cannot be evicted."""


class Lending:
    """The loans of one node. `layout`: the name of its KV layout; `epoch`: its incarnation. No loan is longer than
    `longest_ns`, whatever its deadline."""

    def __init__(
        self,
        engine: Engine,
        text: Text,
        transport: Transport,
        room: Room,
        tasks: Tasks,
        counted: PrefixMetrics,
        *,
        layout: str,
        epoch: int,
        lease_ns: int,
        longest_ns: int,
    ) -> None:
        self._engine, self._text, self._transport, self._room = engine, text, transport, room
        self._tasks, self._counted = tasks, counted
        self._layout, self._epoch, self._lease_ns, self._longest_ns = layout, epoch, lease_ns, longest_ns
        self._owners: set[str] = set()

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """`lent`, then `done` or `failed`. A caller that hangs up ends the loan.

        Raises RequestError: 404 "prefix_gone" when it is not kept at exactly that length (any more), 503 "no_room" or
        "too_many_loans", 409 for another layout, an incarnation that is gone or a transfer in hand, 400.
        """
        asked = await read_json(http, PrefixRequest)
        self._check(asked)
        if asked.epoch not in (0, self._epoch):
            said = f"for incarnation {asked.epoch} of this node; this is {self._epoch}"
            raise RequestError(said, status=409, code="stale_epoch")
        if asked.layout != self._layout:
            said = "the receiver has another model, or the same in another way: its KV layout is not this node's"
            raise RequestError(said, status=409, code="layout_mismatch")
        tokens = await self._tokens(asked)
        lasts_ms = min(asked.deadline_ms, self._longest_ns // 10**6)
        sending, over = self._begin(TransferId(asked.transfer_id), tokens, LinkName(asked.link), lasts_ms)
        out = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            await out.prepare(http)
            await out.write(line_bytes(PrefixUpdate("lent")))
            outcome = await asyncio.shield(over)
            ended = PrefixUpdate("done") if outcome.cause == "applied" else _failed(outcome)
            await out.write(line_bytes(ended))
            await out.write_eof()
        finally:
            sending.abort("cancelled", "the head hung up")  # harmless after the end
        return out

    def _check(self, asked: PrefixRequest) -> None:
        name, longest = asked.transfer_id, self._engine.limits.max_model_len
        if not 1 <= len(name) <= MAX_ID_CHARS:
            raise _bad(f"transfer_id: got {len(name)} characters; expected 1 to {MAX_ID_CHARS}")
        if whole_transfer(TransferId(name)) != name:
            raise _bad(f"transfer_id: got {name}, a name for a rank's share of a transfer")
        if not 1 <= asked.length <= longest:
            raise _bad(f"length: got {asked.length}; expected 1 to {longest}, this model's context")
        if asked.deadline_ms < 1:
            raise _bad(f"deadline_ms: got {asked.deadline_ms}; expected at least 1")

    async def _tokens(self, asked: PrefixRequest) -> Sequence[int]:
        raw, length = bytes(asked.tokens), asked.length
        try:
            ids = await self._text.off_loop(lambda: msgspec.json.decode(raw, type=list[int]), len(raw))
        except msgspec.MsgspecError as error:
            raise _bad(f"tokens: {error}") from None
        if len(ids) < length:
            raise _bad(f"length: got {length}, of {len(ids)} tokens")
        return await self._text.checked(ids[:length])

    def _begin(
        self, transfer: TransferId, tokens: Sequence[int], link: LinkName, deadline_ms: int
    ) -> tuple[Sending, asyncio.Task[Outcome]]:
        """Pins and offers. The task ends when nothing is held any more."""
        owner = f"lend {transfer}"
        if owner in self._owners:
            raise RequestError(f"transfer {transfer} is in hand already", status=409, code="duplicate_transfer")
        if len(self._owners) >= MOST:
            said = f"{len(self._owners)} prefixes are lent already"
            raise RequestError(said, status=503, kind="server_error", code="too_many_loans", retry_after_s=1)
        reuse = self._pinned(owner, tokens)
        try:
            sending = self._transport.offer(
                transfer, self._engine.layout, len(tokens), link, min(self._lease_ns, deadline_ms * 10**6), len(tokens)
            )
        except BaseException as error:
            self._room.leave(owner)
            if isinstance(error, InHand):
                raise RequestError(str(error), status=409, code="duplicate_transfer") from None
            raise
        self._owners.add(owner)
        gone = asyncio.get_running_loop().create_task(sending.released(), name=f"released {transfer}")
        self._tasks.spawn(self._hold(owner, tokens, sending, reuse, gone, deadline_ms / 1000), owner)
        return sending, gone

    def _pinned(self, owner: str, tokens: Sequence[int]) -> Reuse:
        wanted = self._room.prefixes.want_loan(tokens)
        if wanted is None:
            said = f"the first {len(tokens)} tokens are not kept here, or not at exactly that length"
            raise RequestError(said, status=404, code="prefix_gone")
        reuse = self._room.enter_now(owner, wanted)
        if reuse is None or reuse.tokens != len(tokens):
            self._room.leave(owner)
            raise RequestError("no room to read it", status=503, kind="server_error", code="no_room", retry_after_s=1)
        return reuse

    async def _hold(
        self,
        owner: str,
        tokens: Sequence[int],
        sending: Sending,
        reuse: Reuse,
        gone: asyncio.Task[Outcome],
        deadline_s: float,
    ) -> None:
        """Puts all of it, waits until nothing is held, and lets go."""
        put = asyncio.get_running_loop().create_task(self._engine.prefill(tokens, sending, reuse), name=f"put {owner}")
        late = asyncio.get_running_loop().call_later(deadline_s, sending.abort, "deadline", "the loan's time is over")
        try:
            await asyncio.wait({put, gone}, return_when=asyncio.FIRST_COMPLETED)
            if put.done() and not gone.done():
                if (error := put.exception()) is None:
                    sending.finish()
                else:
                    log.warning("lending failed", owner=owner, error=repr(error))
                    sending.abort("engine", "the engine failed")
            outcome = await gone
            self._counted.copied("lent", "ok" if outcome.cause == "applied" else outcome.cause)
        finally:
            late.cancel()
            put.cancel()
            await asyncio.wait({put})
            self._room.leave(owner)
            self._owners.discard(owner)


def _bad(what: str) -> RequestError:
    return RequestError(what, code="invalid_value")


def _failed(outcome: Outcome) -> PrefixUpdate:
    return PrefixUpdate("failed", code=outcome.cause, detail=outcome.detail)
