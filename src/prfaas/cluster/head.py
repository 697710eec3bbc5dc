"""The head of a cluster's prefill nodes: queue, dispatch, tickets, link shares.

It drives `core.routing.queue` and calls the prefill nodes that the roster has. It does not know clients, HTTP servers
or routing: the gateway asks it for its own cluster's prefills, the prefill service for those of other clusters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass

import msgspec
import structlog

from prfaas.cluster.computed import cost_of, parameters_of
from prfaas.cluster.job import Job
from prfaas.cluster.lender import Lender
from prfaas.cluster.nodeclient import NodeClient
from prfaas.cluster.roster import Roster, Sight
from prfaas.cluster.shares import LinkShares
from prfaas.cluster.tickets import GRACE_S, Tickets
from prfaas.core.cache.layout import shown
from prfaas.core.errors import InvariantError, RemoteError
from prfaas.core.ids import ClusterName, LinkName, NodeName, TransferId
from prfaas.core.membership.effects import Lost
from prfaas.core.routing.curve import curve_of
from prfaas.core.routing.queue import (
    Dispatch,
    Finished,
    NodeGone,
    NodeSeen,
    Position,
    PrefillQueue,
    QueueEffect,
    QueueEvent,
    Reject,
    Submit,
    Withdraw,
)
from prfaas.core.transfer.shards import uneven_states
from prfaas.runtime.client import read_bounded
from prfaas.runtime.driver import Driver, loop_now_ns
from prfaas.wire.control import (
    LISTED,
    ClusterInfo,
    NodeInfo,
    PrefillInfo,
    PrefillRequest,
    PrefillUpdate,
    PrefixRequest,
    PrefixSource,
    PrefixUpdate,
    TransferParams,
)

log = structlog.get_logger(__name__)
MAX_ANSWER_BYTES = 1 << 20
MAX_TROUBLES = 3
MS = 1_000_000


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """What a head needs of the topology. `connections`: TCP connections a transfer, by link. Time in seconds."""

    cluster: ClusterName
    model: str
    queue_length: int
    ticket_secret: bytes
    connections: dict[LinkName, int]
    ticket_grace_s: int = GRACE_S
    order: float = 0.0
    """Of the queue: see `core.routing.order`."""


class ClusterHead:
    """Prefills on the members of one cluster. `changed` is called when what `info` says may be another thing."""

    def __init__(
        self,
        settings: HeadSettings,
        roster: Roster,
        shares: LinkShares,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.roster = roster
        self._settings = settings
        self._shares = shares
        self._tickets = Tickets(settings.ticket_secret, settings.ticket_grace_s)
        self._lender = Lender(roster, shares, self._tickets, settings.connections)
        self._changed = changed
        self._infos: dict[NodeName, NodeInfo] = {}
        self._jobs: dict[TransferId, Job] = {}
        self._queue = PrefillQueue(settings.queue_length, settings.order)
        self._driver: Driver[QueueEvent, QueueEffect] = Driver(self._queue, self._perform)
        self._legs: set[asyncio.Task[bool]] = set()
        roster.serve("prefill", self)

    def lend(self, request: PrefixRequest) -> AsyncGenerator[PrefixUpdate, None]:
        """See `Lender.lend`."""
        return self._lender.lend(request)

    def supply(self, transfer: TransferId, source: PrefixSource | None) -> bool:
        """What the prefill `transfer` may fetch, which it waits for; None: nothing. False: no such prefill waits."""
        job = self._jobs.get(transfer)
        return job is not None and job.supply(source)

    async def run(self) -> None:
        """Watches the members and renews link shares, until cancelled; then ends every leg."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.roster.run(), name="watch members")
                group.create_task(self._shares.run(), name="renew link shares")
        finally:
            self._driver.close()
            for leg in list(self._legs):
                leg.cancel()
            await asyncio.gather(*self._legs, return_exceptions=True)

    def validate(self) -> None:
        """Raises InvariantError when the queue or the roster contradicts itself."""
        self._queue.validate()
        self.roster.validate()

    def info(self) -> ClusterInfo:
        """What the head says of its cluster."""
        layouts = sorted({info.layout for info in self._infos.values() if info.layout})
        queue, now_ns = self._queue, loop_now_ns()
        waiting, at_work, curve = queue.line, list(queue.started.items()), queue.curve
        return ClusterInfo(
            cluster=self._settings.cluster,
            model=self._settings.model,
            layout=layouts[0] if layouts else "",
            ready=self._queue.ready,
            queued=len(self._queue.waiting),
            running=len(self._queue.running),
            max_model_len=self._queue.max_tokens,
            trouble="" if self._queue.ready else self._trouble(),
            slots=queue.slots,
            waiting=[
                PrefillInfo(job.job, job.tokens, (now_ns - queue.came_ns[job.job]) // MS) for job in waiting[:LISTED]
            ],
            waiting_tokens=sum(job.tokens for job in waiting[LISTED:]),
            at_work=[
                PrefillInfo(transfer, job.tokens, (now_ns - job.at_ns) // MS) for transfer, job in at_work[:LISTED]
            ],
            at_work_tokens=sum(job.tokens for _, job in at_work[LISTED:]),
            prefill_ns=list(curve.points) if curve is not None else [],
            nodes=self.roster.count("prefill"),
            copies=bool(self._infos) and all(info.copies for info in self._infos.values()),
        )

    def _trouble(self) -> str:
        """Why no node is ready."""
        members = [one for one in self.roster.members().members if one.role == "prefill"]
        found = [f"{one.node}: {one.trouble or one.state}" for one in members]
        return "; ".join(found[:MAX_TROUBLES]) or "it has no prefill node"

    async def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        """`queued` while it waits, `bound` when a node is chosen, then `done` or `failed`, always one of them last.

        Closing the iterator withdraws the job: from the queue, or by hanging up on the node that computes it.
        """
        transfer = TransferId(request.transfer_id)
        refused = self._refusal(request)
        if refused is not None:
            yield refused
            return
        now_ns = loop_now_ns()
        job = Job(request, now_ns + request.deadline_ms * 1_000_000)
        self._jobs[transfer] = job
        prefer = tuple(NodeName(node) for node in request.prefer)
        self._driver.post(Submit(transfer, request.prompt_tokens, job.deadline_ns, prefer))
        try:
            while True:
                update = await job.updates.get()
                yield update
                if update.state in ("done", "failed"):
                    return
        finally:
            del self._jobs[transfer]
            if job.leg is not None:
                job.leg.cancel()
            else:
                self._driver.post(Withdraw(transfer))

    def _refusal(self, request: PrefillRequest) -> PrefillUpdate | None:
        """Why the request cannot be taken, told before it is queued."""
        if request.transfer_id in self._jobs:
            return PrefillUpdate("failed", code="duplicate", detail="this transfer is queued or running already")
        if request.model != self._settings.model:
            detail = f"this cluster serves {self._settings.model!r}, not {request.model!r}"
            return PrefillUpdate("failed", code="wrong_model", detail=detail)
        misfits = [_misfit(request, info) for info in self._infos.values()]
        if misfits and all(misfits):
            return PrefillUpdate("failed", code="layout_mismatch", detail=min(misfits))
        return None

    def member(self, sight: Sight) -> None:
        """See `roster.Workers`."""
        info = sight.info
        if info is not None:
            self._infos[sight.node] = info
            curve = curve_of(info.prefill_ns)
            seen = NodeSeen(sight.node, True, sight.epoch, info.max_sequences, info.max_model_len, curve)
        else:
            self._infos.pop(sight.node, None)
            seen = NodeSeen(sight.node, False, sight.epoch, 0, 0)
        self._driver.post(seen)
        self._changed()

    def lost(self, lost: Lost) -> None:
        """See `roster.Workers`: whoever asked hears of it at once, and the call to the node is hung up."""
        client = self.roster.clients.get(lost.node)
        if client is not None:
            self._shares.forget(client.node)  # what comes after it knows of no lease
        for job in list(self._jobs.values()):
            if job.leg is not None and job.given == (lost.node, lost.epoch):
                job.fail("node_lost", f"prefill node {lost.node}: {lost.cause}")
                job.leg.cancel()

    def gone(self, node: NodeName, cause: str) -> None:
        """See `roster.Workers`."""
        self._infos.pop(node, None)
        self._shares.forget(self.roster.clients[node].node)
        self._driver.post(NodeGone(node))
        self._changed()

    def running(self, node: NodeName) -> int:
        """See `roster.Workers`."""
        return self._queue.on(node)

    def _perform(self, now_ns: int, effect: QueueEffect) -> None:
        job = self._jobs.get(effect.job)
        if job is None:
            raise InvariantError(f"{type(effect).__name__} for {effect.job}, which nobody asked for")
        match effect:
            case Position(_, ahead):
                job.say(PrefillUpdate("queued", position=ahead))
            case Dispatch(transfer, node, epoch):
                job.given = (node, epoch)
                leg = self._leg(transfer, job, self.roster.clients[node], self._infos[node])
                job.leg = asyncio.get_running_loop().create_task(leg, name=f"prefill {transfer} on {node}")
                self._legs.add(job.leg)
                # Not by the leg itself: one that is cancelled before its first step runs none of its own code.
                job.leg.add_done_callback(lambda leg: self._ended(transfer, job, node, leg))
            case Reject(_, code, detail):
                job.fail(code, detail)

    async def _leg(self, transfer: TransferId, job: Job, client: NodeClient, info: NodeInfo) -> bool:
        """One dispatched job: bind, have the node compute, say how it ended; whether well."""
        request, node = job.request, client.node.name
        left_s = max(0.001, (job.deadline_ns - loop_now_ns()) / 1e9)
        link, began_ns = LinkName(request.link), loop_now_ns()
        try:
            async with asyncio.timeout(left_s), self._shares.hold(link, client, transfer):
                if not info.copies:
                    job.decline()
                if client.streams:
                    job.say(self._bound(request, info, left_s))
                prefix = await job.supplied()
                left_s = max(0.001, (job.deadline_ns - loop_now_ns()) / 1e9)
                body = self._node_body(request, client, info, left_s, prefix)
                async with client.post("/v1/completions", body) as response:
                    answer = await read_bounded(response, MAX_ANSWER_BYTES)
                job.answered_ns = loop_now_ns() - began_ns
                job.node_ns, job.cached = cost_of(answer)
                if not client.streams:
                    job.say(PrefillUpdate("bound", node=node, epoch=info.epoch, parameters=parameters_of(answer)))
                await client.sent(transfer)
            job.say(PrefillUpdate("done", node=node, epoch=info.epoch))
            return True
        except RemoteError as failure:
            log.warning("prefill failed", transfer=transfer, node=node, code=failure.code, detail=failure.detail)
            self.roster.look_now(node)
            job.fail(failure.code, failure.detail)
        except TimeoutError:
            job.fail("deadline_exceeded", "the deadline passed while the node computed")
        return False

    def _ended(self, transfer: TransferId, job: Job, node: NodeName, leg: asyncio.Task[bool]) -> None:
        """The node has let go of the job."""
        self._legs.discard(leg)
        bug = None if leg.cancelled() else leg.exception()
        if bug is not None:
            log.error("prefill leg broke", transfer=transfer, node=node, exc_info=bug)
            job.fail("internal", f"{type(bug).__name__} in the head of {self._settings.cluster}")
        ok = not leg.cancelled() and bug is None and leg.result()
        self._driver.post(Finished(transfer, ok, job.node_ns, job.answered_ns, job.cached))
        self.roster.work_ended(node)

    @staticmethod
    def _node_body(
        request: PrefillRequest, client: NodeClient, info: NodeInfo, left_s: float, prefix: PrefixSource | None
    ) -> bytes:
        params = TransferParams(
            transfer_id=request.transfer_id,
            do_remote_decode=True,
            link=request.link,
            prompt_tokens=request.prompt_tokens,
            deadline_ms=int(left_s * 1000),
            epoch=info.epoch,
            receivers=request.receivers,
            prefix=prefix,
        )
        leg = {
            "model": request.model,
            "prompt": request.tokens,
            "max_tokens": 1,
            "kv_transfer_params": client.parameters(params),
        }
        return msgspec.json.encode(leg)

    def _bound(self, request: PrefillRequest, info: NodeInfo, left_s: float) -> PrefillUpdate:
        link = LinkName(request.link)
        ticket = self._tickets.of(info, TransferId(request.transfer_id), NodeName(request.receiver), link, left_s)
        connections = self._settings.connections.get(link, 1)
        return PrefillUpdate(
            "bound", node=info.node, epoch=info.epoch, remote=info.data, ticket=ticket, connections=connections
        )


def _misfit(request: PrefillRequest, info: NodeInfo) -> str:
    """Why the receiver cannot take the KV of a node, by name; "" when it can, or when they compare that themselves."""
    ranks = len(info.data)
    if info.fixed and request.receivers not in (0, ranks):
        return uneven_states(info.fixed, ranks, request.receivers)
    if info.layout and info.layout != request.layout:
        here = shown(info.layout)
        return f"not one model and dtype: KV of {shown(request.layout)} at the receiver, of {here} here"
    return ""


@contextlib.asynccontextmanager
async def running(head: ClusterHead) -> AsyncIterator[ClusterHead]:
    """The head at work, for the length of the block."""
    task = asyncio.get_running_loop().create_task(head.run(), name="cluster head")
    try:
        yield head
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
