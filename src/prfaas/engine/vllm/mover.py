"""The mover: a thread with an event loop in each worker, where transfers live while vLLM computes.

It wires transport, credit and control endpoints; it does not know tensors or requests. The worker's thread gives
commands and polls for what happened; neither waits for the other.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError
from prfaas.core.ids import Epoch
from prfaas.engine.node.credit import Credits
from prfaas.engine.node.links import transport_of
from prfaas.engine.node.promises import Promises
from prfaas.engine.vllm.doors import Doors
from prfaas.engine.vllm.incoming import Incoming
from prfaas.engine.vllm.orders import Offer, Receive
from prfaas.engine.vllm.outgoing import Outgoing, Piece
from prfaas.engine.vllm.settings import Settings
from prfaas.runtime.http import Listening, serve
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import LandedKV, Outcome, Peer, Transport
from prfaas.transport.metrics import MetricStats
from prfaas.wire.control import Address, NodeInfo
from prfaas.wire.layout import fingerprint

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


Happened = Landed | Failed | Over


@dataclass(frozen=True, slots=True)
class Engine:
    """What heads are told of vLLM."""

    max_model_len: int
    max_sequences: int


class Mover:
    """Of one worker. `start` once; all other methods are for the worker's thread."""

    def __init__(self, settings: Settings, layout: KVLayout, engine: Engine, blocks_held: Callable[[], int]) -> None:
        self._settings, self._layout, self._engine, self._blocks_held = settings, layout, engine, blocks_held
        self.epoch = Epoch(time.time_ns())
        self._happened: deque[Happened] = deque()
        self._ready, self._error = threading.Event(), list[BaseException]()
        self._thread = threading.Thread(target=self._run, name="prfaas-mover", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
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
        """What happened since the last call."""
        found = []
        while self._happened:
            found.append(self._happened.popleft())
        return found

    def offer(self, order: Offer) -> None:
        """Offer KV."""
        assert self._outgoing is not None
        self._post(self._outgoing.offer, order, self._deadline_s(order.deadline_ms))

    def put(self, transfer: str, pieces: Sequence[Piece]) -> None:
        """Have `pieces` leave."""
        assert self._outgoing is not None
        self._post(self._outgoing.put, transfer, pieces)

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

    def _deadline_s(self, deadline_ms: int) -> float:
        return deadline_ms / 1000 if deadline_ms else self._settings.topology.limits.deadline_ns / 1e9

    def _post(self, call: Callable[..., Any], *arguments: Any) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            log.debug("the mover has ended")

    def _run(self) -> None:
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
        settings, tasks, metrics = self._settings, Tasks(), Metrics()
        node, limits = settings.node, settings.topology.limits
        stats = MetricStats(metrics)
        transport = transport_of(settings.topology, settings.environment, settings.cluster, node, self.epoch, stats)
        credits = Credits(limits.landing_buffer_bytes, limits.queue_length)
        listening: Listening | None = None
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        tell = self._happened.append
        self._outgoing = Outgoing(
            transport,
            self._layout,
            self.epoch,
            limits.leases.transfer_ns,
            tasks,
            lambda transfer, outcome: tell(Over(transfer, True, outcome)),
        )
        self._incoming = Incoming(
            transport,
            self._layout,
            credits,
            tasks,
            lambda transfer: tell(Landed(transfer)),
            lambda transfer, why: tell(Failed(transfer, why)),
            lambda transfer, outcome: tell(Over(transfer, False, outcome)),
        )
        try:
            peer = await self._listen(transport)
            held = self._blocks_held

            def in_use() -> int:
                return transport.in_use + credits.unused

            metrics.watch_node(node.id, held, in_use)
            doors = Doors(
                lambda: self._info(peer, in_use()),
                Promises(credits, transport, lambda: self._layout, node.id),
                self._outgoing,
                metrics,
            )
            app = doors.app(settings.environment.secret, limits.max_body_bytes)
            try:
                listening = await serve(app, settings.control.host, settings.control.port)
            except OSError as error:
                raise ConfigError(f"cannot listen on {settings.control}: {error.strerror}") from None
            self._ready.set()
            await self._stopped.wait()
        finally:
            if listening is not None:
                await listening.close()
            await transport.close()
            credits.close()
            await tasks.close()

    async def _listen(self, transport: Transport) -> Peer:
        at = self._settings.data
        try:
            peer = await transport.listen(at.host, at.port)
        except OSError as error:
            raise ConfigError(f"cannot listen on {at}: {error.strerror}; expected a free address") from None
        return Peer(self._settings.host, peer.port)

    def _info(self, peer: Peer, transfers: int) -> NodeInfo:
        node, topology = self._settings.node, self._settings.topology
        return NodeInfo(
            node=node.name,
            cluster=self._settings.cluster,
            role=node.role,
            epoch=self.epoch,
            model=topology.public_name,
            layout=fingerprint(self._layout),
            max_model_len=self._engine.max_model_len,
            max_sequences=self._engine.max_sequences,
            data=[Address(peer.host, peer.port)],
            blocks_in_use=self._blocks_held(),
            transfers_in_use=transfers,
        )
