"""The mover: a thread with an event loop in each worker, where transfers live while vLLM computes.

It wires transport, credit and control endpoints; it does not know tensors or requests. The worker's thread gives
commands and polls for what happened; neither waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvloop

from prfaas.core.errors import ConfigError, InvariantError
from prfaas.core.ids import LinkName
from prfaas.core.transfer.shards import fixed_part
from prfaas.engine.node.credit import Credits
from prfaas.engine.node.links import transport_of
from prfaas.engine.node.promises import Promises
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.doors import Doors
from prfaas.engine.vllm.incoming import Incoming
from prfaas.engine.vllm.orders import Offer, Pace, Receive
from prfaas.engine.vllm.outgoing import Outgoing, Piece
from prfaas.engine.vllm.place import Place
from prfaas.engine.vllm.settings import Settings
from prfaas.runtime.http import Listening, serve
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import LandedKV, Outcome, Transport
from prfaas.transport.metrics import MetricStats
from prfaas.wire.control import Address, NodeInfo
from prfaas.wire.layout import layout_name

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Landed:
    """All of `transfer` is here."""

    transfer: str


@dataclass(frozen=True, slots=True)
class Failed:
    """`transfer` will not come."""

    transfer: str
    why: str


@dataclass(frozen=True, slots=True)
class Over:
    """`transfer` holds nothing here any more."""

    transfer: str
    sent: bool
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Paced:
    """The first worker was told the node's rate, for all of them; `at_ns` is when."""

    pace: Pace
    at_ns: int

    def left(self) -> list[Pace]:
        """What of it still holds."""
        left_ns = self.pace.lease_ns - (time.monotonic_ns() - self.at_ns)
        return [replace(self.pace, lease_ns=left_ns)] if left_ns > 0 else []


Happened = Landed | Failed | Over | Paced


@dataclass(frozen=True, slots=True)
class Engine:
    """What heads are told of vLLM."""

    max_model_len: int
    max_sequences: int


class Mover:
    """Of one worker. `start` once; all other methods are for the worker's thread."""

    def __init__(
        self, settings: Settings, deals: Deals, engine: Engine, place: Place, blocks_held: Callable[[], int]
    ) -> None:
        self._settings, self._deals, self._engine, self._blocks_held = settings, deals, engine, blocks_held
        self._place = place
        self._happened: deque[Happened] = deque()
        self._ready, self._error = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name="prfaas-mover", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._transport: Transport | None = None
        self._outgoing: Outgoing | None = None
        self._incoming: Incoming | None = None

    def start(self) -> None:
        """Returns when it listens. Raises ConfigError when it cannot."""
        self._thread.start()
        self._ready.wait()
        if self._error:
            raise self._error[0]

    def close(self, wait_s: float = 5.0) -> None:
        """Fail what is open and end the thread."""
        if self._loop is not None and self._stopped is not None:
            self._post(self._stopped.set)
            self._thread.join(wait_s)

    def happened(self) -> list[Happened]:
        """What happened since the last call. Raises InvariantError when the thread failed: holds would never end."""
        if self._error:
            raise InvariantError("the mover has failed") from self._error[0]
        found = []
        while self._happened:
            found.append(self._happened.popleft())
        return found

    def offer(self, order: Offer) -> None:
        """Offer KV."""
        assert self._outgoing is not None
        self._post(self._outgoing.offer, order, self._deadline_s(order.deadline_ms))

    def put(self, transfer: str, to: int, pieces: Sequence[Piece]) -> None:
        """Have `pieces` leave for the other side's rank `to`."""
        assert self._outgoing is not None
        self._post(self._outgoing.put, transfer, to, pieces)

    def finish(self, transfer: str) -> None:
        """All was put."""
        assert self._outgoing is not None
        self._post(self._outgoing.finish, transfer)

    def receive(self, order: Receive) -> None:
        """Receive KV."""
        assert self._incoming is not None
        self._post(self._incoming.receive, order, self._deadline_s(order.deadline_ms))

    def take(self, transfer: str) -> LandedKV | None:
        """What landed, once; `applied` or `stop` must follow. None when it is gone."""
        assert self._incoming is not None
        return self._incoming.take(transfer)

    def applied(self, transfer: str) -> None:
        """The engine has it."""
        assert self._incoming is not None
        self._post(self._incoming.applied, transfer)

    def discard(self, transfer: str) -> None:
        """Receive it, and drop it."""
        assert self._incoming is not None
        self._post(self._incoming.discard, transfer)

    def stop(self, transfer: str, code: str, detail: str) -> None:
        """Give it up, whichever way it goes."""
        assert self._outgoing is not None
        assert self._incoming is not None
        self._post(self._outgoing.abort, transfer, code, detail)
        self._post(self._incoming.stop, transfer, code, detail)

    def pace(self, order: Pace) -> None:
        """Send no faster. (The first worker was told first.)"""
        if self._place.rank:
            assert self._transport is not None
            self._post(self._transport.pace, LinkName(order.link), order.rate_bps, order.lease_ns, order.fence)

    def _deadline_s(self, deadline_ms: int) -> float:
        return deadline_ms / 1000 if deadline_ms else self._settings.topology.limits.deadline_ns / 1e9

    def _post(self, call: Callable[..., Any], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            log.debug("the mover has ended")

    def _run(self) -> None:
        _unbind()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._live())
        except BaseException as error:
            if self._ready.is_set():
                log.exception("the mover failed")
            self._error.append(error)
        finally:
            self._ready.set()

    async def _live(self) -> None:
        settings, tasks, metrics, place = self._settings, Tasks(), Metrics(), self._place
        limits = settings.topology.limits
        transport = self._transport = transport_of(
            settings.topology, settings.environment, settings.cluster, settings.node, place.epoch, MetricStats(metrics)
        )
        credits = Credits(limits.landing_buffer_bytes // place.ranks, limits.queue_length)
        listening: Listening | None = None
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        tell = self._happened.append
        outgoing = self._outgoing = Outgoing(
            transport,
            self._deals,
            place.epoch,
            limits.leases.transfer_ns,
            tasks,
            lambda transfer, outcome: tell(Over(transfer, True, outcome)),
        )
        self._incoming = Incoming(
            transport,
            self._deals,
            place,
            credits,
            tasks,
            lambda transfer: tell(Landed(transfer)),
            lambda transfer, why: tell(Failed(transfer, why)),
            lambda transfer, outcome: tell(Over(transfer, False, outcome)),
        )
        try:
            await self._listen(transport)
            if place.rank == 0:
                listening = await self._serve(transport, credits, outgoing, metrics)
            self._ready.set()
            await self._until_stopped(tasks, self._stopped)
        finally:
            if listening is not None:
                await listening.close()
            await transport.close()
            credits.close()
            await tasks.close()

    async def _until_stopped(self, tasks: Tasks, stopped: asyncio.Event) -> None:
        """Raises what made a task fail unexpectedly: that is a bug, and vLLM must not wait for ever because of it."""
        asked, failed = asyncio.create_task(stopped.wait()), asyncio.create_task(tasks.failure())
        try:
            await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise failed.result()
        finally:
            asked.cancel()
            failed.cancel()

    async def _listen(self, transport: Transport) -> None:
        """Rank r is at the node's port + r."""
        at, port = self._settings.data, self._settings.data.port + self._place.rank
        try:
            await transport.listen(at.host, port)
        except OSError as error:
            said = f"cannot listen on port {port} of {at.host}: {error.strerror}; expected a free address"
            raise ConfigError(said) from None

    async def _serve(self, transport: Transport, credits: Credits, outgoing: Outgoing, metrics: Metrics) -> Listening:
        settings, node = self._settings, self._settings.node.id

        def in_use() -> int:
            return transport.in_use + credits.unused

        def pace(link: LinkName, rate_bps: int, lease_ns: int, fence: int) -> None:
            each = Pace(link, rate_bps // self._place.ranks, lease_ns, fence)
            transport.pace(link, each.rate_bps, lease_ns, fence)
            if self._place.ranks > 1:
                self._happened.append(Paced(each, time.monotonic_ns()))

        metrics.watch_node(node, self._blocks_held, in_use)
        promises = Promises(credits, pace, lambda: self._deals.mine, node)
        doors = Doors(lambda: self._info(in_use()), promises, outgoing, metrics)
        app = doors.app(settings.environment.secret, settings.topology.limits.max_body_bytes)
        try:
            return await serve(app, settings.control.host, settings.control.port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {settings.control}: {error.strerror}") from None

    def _info(self, transfers: int) -> NodeInfo:
        node, topology, data = self._settings.node, self._settings.topology, self._settings.data
        return NodeInfo(
            node=node.name,
            cluster=self._settings.cluster,
            role=node.role,
            epoch=self._place.epoch,
            model=topology.public_name,
            layout=layout_name(self._deals.layout),
            max_model_len=self._engine.max_model_len,
            max_sequences=self._engine.max_sequences,
            data=[Address(self._settings.host, data.port + rank) for rank in range(self._place.ranks)],
            blocks_in_use=self._blocks_held(),
            transfers_in_use=transfers,
            fixed=fixed_part(self._deals.layout),
        )


def _unbind() -> None:
    """Let this thread run wherever the parent may: vLLM binds a CPU worker to the cores that it computes on, and on
    those the thread would slow down what it waits for."""
    with contextlib.suppress(AttributeError, OSError):  # not on this system; the parent is gone
        os.sched_setaffinity(0, os.sched_getaffinity(os.getppid()))
