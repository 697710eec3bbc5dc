"""Following the prefix caches of a cluster's nodes: from KV events to changes of the index.

It drives one `core.index.follow` machine a stream (a node, or a data-parallel rank of it), and asks publishers for what
was missed, over ZeroMQ. It does not know what is made of the changes, nor who the nodes are: `KVEventsReader` hands in
what it hears, whoever keeps the roster says who restarted or is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import assert_never

import structlog
import zmq
import zmq.asyncio

from prfaas.cluster.enginemap import EngineMap, Roots
from prfaas.config.units import Endpoint
from prfaas.core.errors import ProtocolError
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Change, Cleared, Closed, Marked, Opened
from prfaas.core.index.follow import (
    Answered,
    AnswerOver,
    Apply,
    AskAgain,
    AskSnapshot,
    Check,
    Connected,
    Failed,
    Follow,
    FollowEffect,
    FollowEvent,
    Forget,
    Heard,
    Know,
    Message,
    Restarted,
)
from prfaas.core.index.places import Place
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.tasks import Tasks
from prfaas.wire.kvevents import END, MAX_BYTES, SNAPSHOT, AllCleared, KVEvent, KVEvents, decode

log = structlog.get_logger(__name__)
ANSWER_S = 5.0
CHECK_S = 15.0
Body = tuple[KVEvent, ...]


class KVFollower:
    """The streams of one cluster. `listen` gets every change, in order, on the event loop.

    `roots`: see `EngineMap`. `replay`: where publishers answer, by node (rank r of several: r ports on); a node without
    can be asked nothing. `ours`: nodes whose hashes are canonical. `secret`: what publishers of ours demand.
    `answer_s`: so long the next message of an answer may take; `check_s`: so often silent streams are checked.
    """

    def __init__(
        self,
        cluster: ClusterName,
        listen: Callable[[Change], None],
        roots: Roots,
        *,
        replay: Mapping[NodeName, Endpoint] | None = None,
        ours: Collection[NodeName] = (),
        secret: str = "",
        answer_s: float = ANSWER_S,
        check_s: float = CHECK_S,
    ) -> None:
        self._cluster, self._listen, self._roots = cluster, listen, roots
        self._replay, self._ours, self._secret = dict(replay or {}), set(ours), secret.encode()
        self._answer_s, self._check_s = answer_s, check_s
        self._streams: dict[Place, _Stream] = {}
        self._epochs: dict[Place, int] = {}
        self._tasks = Tasks()

    async def run(self) -> None:
        """Asks and checks, until cancelled."""
        try:
            for node in self._replay:
                self._stream(Place(self._cluster, node))
            while True:
                await asyncio.sleep(self._check_s)
                self.check()
        finally:
            await self._tasks.close()

    def heard(self, node: NodeName, events: KVEvents) -> None:
        """`node` published this."""
        stream = self._stream(Place(self._cluster, node, events.rank or 0))
        stream.heard = True
        self._post(stream, Heard(_message(events)))

    def met(self, node: NodeName, replay: Endpoint | None, *, ours: bool) -> None:
        """A new incarnation of `node` is there, which answers at `replay`: it is asked what it holds."""
        self._replay.pop(node, None)
        self._ours.discard(node)
        if replay is not None:
            self._replay[node] = replay
        if ours:
            self._ours.add(node)
        streams = self._of(node)
        for stream in streams:
            self._post(stream, Restarted())
        if not streams:
            self._stream(Place(self._cluster, node))

    def restarted(self, node: NodeName, epoch: Epoch) -> None:
        """Another incarnation of `node` is there. Nothing where its messages have shown so already."""
        for stream in self._of(node):
            self._post(stream, Restarted(epoch))

    def gone(self, node: NodeName) -> None:
        """`node` is no more."""
        self._replay.pop(node, None)
        for stream in self._of(node):
            self._end_ask(stream)
            del self._streams[stream.place]
            self._listen(Closed(stream.place))

    def check(self) -> None:
        """Whether anything was missed of streams that were silent since the last check."""
        for stream in list(self._streams.values()):
            if not stream.heard and stream.asking is None and stream.place.node in self._replay:
                self._post(stream, Connected())  # where it could not be asked before
                self._post(stream, Check())
            stream.heard = False

    def _of(self, node: NodeName) -> list[_Stream]:
        return [stream for place, stream in self._streams.items() if place.node == node]

    def _stream(self, place: Place) -> _Stream:
        stream = self._streams.get(place)
        if stream is None:
            stream = self._streams[place] = _Stream(place, self._new_map(place))
            self._open(place)
            self._post(stream, Connected())
        return stream

    def _open(self, place: Place) -> None:
        self._epochs[place] = self._epochs.get(place, 0) + 1
        self._listen(Opened(place, Epoch(self._epochs[place])))

    def _new_map(self, place: Place) -> EngineMap:
        return EngineMap(place, self._roots, canonical=place.node in self._ours)

    def _post(self, stream: _Stream, event: FollowEvent[Body]) -> None:
        for effect in stream.follow.handle(loop_now_ns(), event):
            self._perform(stream, effect)

    def _perform(self, stream: _Stream, effect: FollowEffect[Body]) -> None:
        match effect:
            case Apply(body):
                for change in stream.map.changes(body):
                    self._listen(change)
            case Forget(restarted):
                if restarted:
                    stream.map = self._new_map(stream.place)
                    self._open(stream.place)
                else:
                    stream.map.forget()
                    self._listen(Cleared(stream.place))
            case Know(known):
                log.info("KV events", **stream.place._asdict(), known=known.value, unplaced=stream.map.unplaced)
                self._listen(Marked(stream.place, known))
            case AskSnapshot(ask):
                self._start(stream, ask, SNAPSHOT)
            case AskAgain(ask, sequence):
                self._start(stream, ask, sequence.to_bytes(8, "big"))
            case _:
                assert_never(effect)

    def _start(self, stream: _Stream, ask: int, what: bytes) -> None:
        self._end_ask(stream)
        at = self._replay.get(stream.place.node)
        work = self._unanswered(stream, ask) if at is None else self._answer(stream, ask, what, at)
        stream.asking = self._tasks.spawn(work, f"KV events of {stream.place.node} again")

    @staticmethod
    def _end_ask(stream: _Stream) -> None:
        if stream.asking is not None and stream.asking is not asyncio.current_task():
            stream.asking.cancel()
        stream.asking = None

    async def _unanswered(self, stream: _Stream, ask: int) -> None:
        stream.asking = None
        self._post(stream, Failed(ask))

    async def _answer(self, stream: _Stream, ask: int, what: bytes, at: Endpoint) -> None:
        """Asks the publisher, and hands its answer in."""
        socket = zmq.asyncio.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_BYTES)
        socket.setsockopt(zmq.IPV6, ":" in at.host)
        end: FollowEvent[Body] = Failed(ask)
        try:
            socket.connect(f"tcp://{Endpoint.at(at.host, at.port + stream.place.rank)}")
            ours = [self._secret] if self._secret and stream.place.node in self._ours else []
            await socket.send_multipart([b"", what, *ours])
            while True:
                async with asyncio.timeout(self._answer_s):
                    frames = [bytes(frame) for frame in await socket.recv_multipart()]
                if len(frames) < 3 or frames[-2] == END:
                    end = AnswerOver(ask) if frames[-2:-1] == [END] else end
                    break
                self._post(stream, Answered(ask, _message(decode([b"", *frames[-2:]]))))
        except (TimeoutError, ProtocolError, zmq.ZMQError) as error:
            log.warning("KV events are not to be had again", node=stream.place.node, detail=str(error) or "no answer")
        finally:
            socket.close()
        if stream.asking is asyncio.current_task():
            stream.asking = None
        self._post(stream, end)


class _Stream:
    """One publisher's: `heard` since the last check; `asking`: the question that is open."""

    def __init__(self, place: Place, engine_map: EngineMap) -> None:
        self.place = place
        self.map = engine_map
        self.follow: Follow[Body] = Follow()
        self.heard = False
        self.asking: asyncio.Task[None] | None = None


def _message(events: KVEvents) -> Message[Body]:
    clears = any(isinstance(event, AllCleared) for event in events.events)
    return Message(events.sequence, events.at_s, events.events, events.epoch, clears)
