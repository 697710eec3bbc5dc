"""Telling what an engine's prefix cache holds: KV events over ZeroMQ, as vLLM's publisher does, and snapshots.

It knows sockets and the messages' frames; it does not know caches: its owner says what was stored, removed or cleared,
and lists all that is held when it is asked to. Publishing never waits: a subscriber that does not read loses messages,
sees the gap, and asks for them, or for a snapshot, at the listener here. That answers from a bounded buffer. (One that
connects late sees its gap at once, for the last message is sent again whenever somebody subscribes.)
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import structlog
import zmq
import zmq.asyncio

from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import Epoch
from prfaas.wire.kvevents import END, SNAPSHOT, AllCleared, BlocksStored, KVEvent, KVEvents, encode

log = structlog.get_logger(__name__)
BUFFER_MESSAGES = 10_000
BUFFER_BYTES = 64 << 20
PAGE_BLOCKS = 4_096
"""Blocks in one message of a snapshot."""
MOST_WAITING = 20_000
"""Messages that wait for one subscriber to read them; more are lost to it."""
TURN = 64
"""Messages of an answer that are sent before the event loop has its turn."""


class KVPublisher:
    """The events of one node (or of one rank of it), under `topic`, its name.

    `dial`: where the head of its cluster listens. `replay`: where it answers who has missed something, if anywhere
    (port 0: any, see `replay_port`); off loopback that demands `secret`. `snapshot` lists what is held now, parents
    first. Raises ConfigError.
    """

    def __init__(
        self,
        topic: str,
        epoch: Epoch,
        dial: Endpoint,
        *,
        replay: Endpoint | None = None,
        secret: str = "",
        snapshot: Callable[[], Iterable[KVEvent]] | None = None,
        rank: int | None = None,
        buffer_messages: int = BUFFER_MESSAGES,
        buffer_bytes: int = BUFFER_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if replay is not None and not replay.loopback and not secret:
            raise ConfigError(f"KV events are replayed at {replay}, which is not on loopback; expected a secret")
        self._topic, self._epoch, self._rank, self._clock = topic, epoch, rank, clock
        self._snapshot, self._secret = snapshot, secret.encode()
        self._buffer: deque[tuple[int, list[bytes]]] = deque()
        self._buffer_messages, self._buffer_bytes, self._bytes = buffer_messages, buffer_bytes, 0
        self._sequence, self._last_s = 0, 0.0
        self._router: zmq.asyncio.Socket | None = None
        self.replay_port = 0
        """Where it answers; 0 when it does not."""
        if replay is not None:
            self._router = zmq.asyncio.Context.instance().socket(zmq.ROUTER)
            self._router.setsockopt(zmq.LINGER, 0)
            self._router.setsockopt(zmq.SNDHWM, MOST_WAITING)
            self._router.setsockopt(zmq.MAXMSGSIZE, 4096)
            self._router.setsockopt(zmq.IPV6, ":" in replay.host)
            try:
                self._router.bind(f"tcp://{replay}")
                bound = self._router.getsockopt(zmq.LAST_ENDPOINT)
                assert isinstance(bound, bytes)
                self.replay_port = int(bound.rstrip(b"\0").rpartition(b":")[2])
            except zmq.ZMQError as error:
                self._router.close()
                raise ConfigError(f"cannot listen on {replay}: {error.strerror}; expected a free address") from None
        self._socket = zmq.asyncio.Context.instance().socket(zmq.XPUB)
        self._socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, MOST_WAITING)
        self._socket.setsockopt(zmq.IPV6, ":" in dial.host)
        self._socket.connect(f"tcp://{dial}")

    @property
    def published(self) -> int:
        """Messages so far."""
        return self._sequence

    def publish(self, *events: KVEvent) -> None:
        """These happened, in order: one message. Never waits."""
        self._last_s = self._clock()
        message = KVEvents(self._sequence, self._last_s, events, self._rank, self._epoch)
        frames = encode(self._topic, message)
        self._sequence += 1
        self._buffer.append((message.sequence, frames))
        self._bytes += len(frames[2])
        while len(self._buffer) > self._buffer_messages or self._bytes > self._buffer_bytes:
            self._bytes -= len(self._buffer.popleft()[1][2])
        self._send(frames)

    async def run(self) -> None:
        """Greets who subscribes and answers who asks, until cancelled; then closes."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._greet(), name="greet subscribers")
                if self._router is not None:
                    group.create_task(self._answers(self._router), name="answer questions about KV events")
        finally:
            self.close()

    def close(self) -> None:
        """No more is published or answered."""
        self._socket.close()
        if self._router is not None:
            self._router.close()

    def _send(self, frames: list[bytes]) -> None:
        self._socket.send_multipart(frames)  # of an XPUB socket: kept or dropped, at once

    async def _greet(self) -> None:
        """Who subscribes gets the last message again: what was published before it was there shows as a gap."""
        while True:
            said = bytes(await self._socket.recv())
            if said[:1] == b"\x01" and self._buffer:
                self._send(self._buffer[-1][1])

    async def _answers(self, router: zmq.asyncio.Socket) -> None:
        while True:
            await self._answer(router, [bytes(frame) for frame in await router.recv_multipart()])

    async def _answer(self, router: zmq.asyncio.Socket, asked: list[bytes]) -> None:
        """`asked`: whose socket, an empty frame, 8 bytes, the secret where there is one."""
        if len(asked) not in (3, 4) or len(asked[2]) != 8:
            log.warning("a question about KV events is none", frames=[len(frame) for frame in asked[:8]])
            return
        shown = asked[3] if len(asked) == 4 else b""
        if self._secret and not hmac.compare_digest(shown, self._secret):
            log.warning("a question about KV events without the secret")
            return
        who = asked[0]
        found = self._pages() if asked[2] == SNAPSHOT else self._since(int.from_bytes(asked[2], "big"))
        for count, frames in enumerate(found, 1):
            await router.send_multipart([who, b"", *frames])
            if count % TURN == 0:
                await asyncio.sleep(0)
        await router.send_multipart([who, b"", b"", END, b""])

    def _since(self, sequence: int) -> list[list[bytes]]:
        return [frames for number, frames in self._buffer if number >= sequence]

    def _pages(self) -> list[list[bytes]]:
        """All that is held, as of the last message. Made at once, for it is of one moment."""
        if self._snapshot is None or not self._sequence:
            return []
        return [
            encode(self._topic, KVEvents(self._sequence - 1, self._last_s, tuple(page), self._rank, self._epoch))
            for page in _paged(self._snapshot())
        ]


def _paged(events: Iterable[KVEvent]) -> Iterator[list[KVEvent]]:
    page: list[KVEvent] = [AllCleared()]
    blocks = 0
    for event in events:
        page.append(event)
        blocks += len(event.hashes) if isinstance(event, BlocksStored) else 0
        if blocks >= PAGE_BLOCKS:
            yield page
            page, blocks = [], 0
    if page:
        yield page
