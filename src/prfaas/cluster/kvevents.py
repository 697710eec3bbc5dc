"""Hearing what nodes keep in their prefix caches: KV events over ZeroMQ, vLLM's and ours.

It knows the socket, and which nodes there are by their topics; it does not know what is made of the events. Messages
that cannot be read, and gaps in a node's sequence, are counted: who keeps an index (`kvfollow`) then asks anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog
import zmq
import zmq.asyncio

from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError, ProtocolError
from prfaas.core.ids import NodeName
from prfaas.runtime.metrics import Metrics
from prfaas.wire.kvevents import MAX_BYTES, AllCleared, BlocksRemoved, BlocksStored, KVEvents, decode

log = structlog.get_logger(__name__)
KINDS = {BlocksStored: "stored", BlocksRemoved: "removed", AllCleared: "cleared"}
QUEUED = 10_000
"""Messages of one node that wait here; more are lost, and counted."""


class KVEventsReader:
    """Listens at `at` for the events of `nodes`, and tells `listen`. Raises ConfigError when it cannot listen there."""

    def __init__(
        self,
        at: Endpoint,
        nodes: Collection[NodeName],
        metrics: Metrics,
        listen: Callable[[NodeName, KVEvents], None] = lambda node, events: None,
    ) -> None:
        self._nodes, self._metrics, self._listen = set(nodes), metrics, listen
        self._next: dict[tuple[NodeName, int], int] = {}
        self._socket = zmq.asyncio.Context.instance().socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVHWM, QUEUED)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        self._socket.setsockopt(zmq.IPV6, ":" in at.host)
        for node in sorted(self._nodes):
            self._socket.setsockopt(zmq.SUBSCRIBE, node.encode())
        try:
            self._socket.bind(f"tcp://{at}")
        except zmq.ZMQError as error:
            self._socket.close()
            raise ConfigError(f"cannot listen on {at}: {error.strerror}; expected a free address") from None

    def hear(self, node: NodeName) -> None:
        """This node too."""
        if node not in self._nodes:
            self._nodes.add(node)
            self._socket.setsockopt(zmq.SUBSCRIBE, node.encode())

    async def run(self) -> None:
        """Reads, until cancelled."""
        try:
            while True:
                self.take([bytes(frame) for frame in await self._socket.recv_multipart()])
        finally:
            self._socket.close()

    def take(self, frames: list[bytes]) -> None:
        """One message."""
        node = NodeName(frames[0].decode(errors="replace"))
        if node not in self._nodes:
            return  # a name that begins as one of ours
        try:
            events = decode(frames)
        except ProtocolError as error:
            log.warning("KV events cannot be read", node=node, detail=error.detail)
            self._metrics.kv_events(node, "broken", 1)
            return
        stream = (node, events.rank or 0)  # each data-parallel rank counts for itself
        expected = self._next.get(stream, events.sequence)
        if events.sequence > expected:
            log.warning("KV events were lost", node=node, messages=events.sequence - expected)
            self._metrics.kv_events(node, "lost", events.sequence - expected)
        self._next[stream] = events.sequence + 1  # a lower one: the node began anew
        for event in events.events:
            self._metrics.kv_events(node, KINDS[type(event)], 1)
        self._listen(node, events)
