"""Nodes in one process, over real HTTP ports, and what a head would say to them.

It knows the node server, the derived engine and the memory transport. `Rig.settled` is what must be true after every
test: all that was held is given back, blocks, transfers, landing bytes, background tasks.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec

from prfaas.config.units import Endpoint
from prfaas.core.ids import ClusterName, Epoch, LinkName, NodeName, TransferId
from prfaas.engine.base import Limits
from prfaas.engine.node.identity import Identity, NodeLimits
from prfaas.engine.node.server import DEFAULT_LIMITS, NodeServer
from prfaas.engine.node.telling import Telling
from prfaas.model.blockhash import CacheKey
from prfaas.model.text import Text, prompt_hash
from prfaas.runtime.client import make_session
from prfaas.runtime.http import Listening
from prfaas.runtime.kvpublish import KVPublisher
from prfaas.runtime.metrics import Metrics
from prfaas.testing.bytemodel import BOS, VOCAB
from prfaas.testing.engine import DerivedEngine
from prfaas.transport.base import Transport
from prfaas.transport.memory import MemoryNetwork, MemoryTransport
from prfaas.transport.metrics import MetricStats
from prfaas.transport.tcp import TcpTransport
from prfaas.wire.control import Address, TransferParams
from prfaas.wire.sse import Event, EventReader
from prfaas.wire.ticket import mint

SECRET = "a secret of thirty-two characters."
LINK = LinkName("far->home")
MODEL = "derived"
ROOT = CacheKey(MODEL).root()
LIMITS = Limits(max_model_len=400, max_sequences=4, vocab_size=VOCAB, block_tokens=16, kv_blocks=64)


async def until(true: Callable[[], bool], what: str = "") -> None:
    """Waits until `true()`, and says what did not come."""
    try:
        async with asyncio.timeout(30):
            while not true():  # noqa: ASYNC110  (conditions of many kinds, none of which has an event)
                await asyncio.sleep(0.002)
    except TimeoutError:
        raise AssertionError(f"never: {what or true}") from None


@dataclass(slots=True)
class Told:
    """One choice of an answer, its chunks put together. `logprobs`: as OpenAI has it, whichever endpoint."""

    text: str = ""
    finish: str | None = None
    logprobs: dict[str, list[Any]] | None = None

    def add(self, choice: dict[str, Any]) -> None:
        """A chunk, or a whole choice."""
        assert self.finish is None, "a piece after the last one"
        if "text" in choice:
            self.text += choice["text"]
        else:
            self.text += choice["message" if "message" in choice else "delta"].get("content") or ""
        self.finish = choice["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            if values is not None:  # `refusal`
                self.logprobs = self.logprobs or {}
                self.logprobs.setdefault(name, []).extend(values)


@dataclass(slots=True)
class Answer:
    """A finished HTTP answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The error's code."""
        return str(self.json["error"]["code"])

    @property
    def message(self) -> str:
        """The error's message."""
        return str(self.json["error"]["message"])

    @property
    def events(self) -> list[Event]:
        return EventReader().feed(self.body)

    @property
    def streamed(self) -> bool:
        return self.headers["Content-Type"].startswith("text/event-stream")

    @property
    def chunks(self) -> list[Any]:
        """The body, or a stream's chunks."""
        return [json.loads(event.data) for event in self.events if not event.is_done] if self.streamed else [self.json]

    @property
    def choices(self) -> list[Told]:
        """All choices in order, streamed or whole, of either endpoint."""
        found: dict[int, Told] = {}
        for chunk in self.chunks:
            for choice in chunk.get("choices", []):
                found.setdefault(choice["index"], Told()).add(choice)
        assert sorted(found) == list(range(len(found)))
        return [found[index] for index in sorted(found)]

    @property
    def usage(self) -> Any:
        """The usage, of a stream its last chunk's, if it has one."""
        return self.chunks[-1].get("usage")

    @property
    def text(self) -> str:
        """The generated text of the one choice, streamed or whole, of either endpoint; "" when there is none."""
        (told,) = self.choices or [Told()]
        return told.text


@dataclass(slots=True)
class Node:
    """One node of the rig."""

    engine: DerivedEngine
    server: NodeServer
    transport: Transport
    identity: Identity
    listening: Listening
    session: aiohttp.ClientSession

    @property
    def held(self) -> tuple[int, int, int]:
        """Blocks, transfers, landing bytes."""
        return self.server.blocks_in_use, self.server.transfers_in_use, self.server._credits.taken_bytes

    async def post(self, path: str, body: Any, *, raw: bytes | None = None) -> Answer:
        data = raw if raw is not None else json.dumps(body).encode()
        async with self.session.post(self.listening.url + path, data=data) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def get(self, path: str) -> Answer:
        async with self.session.get(self.listening.url + path) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def delete(self, path: str) -> Answer:
        async with self.session.delete(self.listening.url + path) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def complete(self, prompt: Any, **fields: Any) -> Answer:
        return await self.post("/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0} | fields)

    async def credit(self, transfer: str, prompt_tokens: int, lease_ms: int = 5000) -> Answer:
        body = {"transfer_id": transfer, "prompt_tokens": prompt_tokens, "lease_ms": lease_ms}
        return await self.post("/prfaas/v1/credit", body)

    async def metric(self, name: str) -> float:
        """The value of the one sample that begins with `name`."""
        lines = (await self.get("/metrics")).body.decode().splitlines()
        (line,) = [line for line in lines if line.startswith(name)]
        return float(line.rpartition(" ")[2])


@dataclass(slots=True)
class Rig:
    """Makes nodes; `far` prefills, `home` decodes."""

    directory: Path
    stack: AsyncExitStack
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    nodes: dict[str, Node] = field(default_factory=dict)
    telling: dict[str, tuple[Endpoint, asyncio.Task[None]]] = field(default_factory=dict)
    """Of nodes that tell of their prefix caches: to whom, and who does it."""

    async def node(
        self,
        name: str,
        role: Literal["prefill", "decode"],
        *,
        limits: Limits = LIMITS,
        node_limits: NodeLimits = DEFAULT_LIMITS,
        epoch: Epoch | None = None,
        wait: bool = True,
        transport: Transport | None = None,
        engine: DerivedEngine | None = None,
        port: int = 0,
        prefill_ns: Sequence[tuple[int, int]] = (),
        events: Endpoint | None = None,
        tcp: bool = False,
    ) -> Node:
        """One that is up. `events`: where it tells of its prefix cache; `tcp`: its KV goes over sockets."""
        epoch = epoch or Epoch(time.time_ns())
        cluster = ClusterName("far" if role == "prefill" else "home")
        metrics = Metrics()
        stats, who = MetricStats(metrics), NodeName(name)
        if tcp:
            transport = TcpTransport(who, epoch, SECRET.encode(), stats=stats)
        transport = transport or MemoryTransport(who, epoch, SECRET.encode(), self.network, stats=stats)
        peer = await transport.listen("127.0.0.1", 0)
        identity = Identity(NodeName(name), cluster, role, epoch, MODEL, (peer,))
        engine = engine or DerivedEngine(limits)
        text = Text.load(self.directory)
        telling, answers = self._publish(name, epoch, events) if events is not None else (None, [])
        server = NodeServer(
            engine,
            text,
            transport,
            identity,
            node_limits,
            SECRET,
            metrics,
            prefill_ns=prefill_ns,
            telling=telling,
            kv_events=answers,
        )
        self.stack.push_async_callback(server.close)
        starting = asyncio.create_task(server.start("127.0.0.1", port))
        if wait:
            await starting
        else:
            self.stack.callback(starting.cancel)
        await until(lambda: server._listening is not None)
        assert server._listening is not None
        session = await self.stack.enter_async_context(make_session(SECRET))
        made = Node(engine, server, transport, identity, server._listening, session)
        self.nodes[name] = made
        return made

    def _publish(self, name: str, epoch: Epoch, events: Endpoint) -> tuple[Telling, list[Address]]:
        telling = Telling(ROOT)
        at = Endpoint.at("127.0.0.1", 0)
        publisher = KVPublisher(name, epoch, events, replay=at, secret=SECRET, snapshot=telling.snapshot)
        telling.publish = publisher.publish
        task = asyncio.create_task(publisher.run())
        self.telling[name] = events, task
        self.stack.push_async_callback(self.hush, name)
        return telling, [Address(at.host, publisher.replay_port)]

    async def hush(self, name: str) -> None:
        """The node of that name tells nobody of its cache any more. Harmless when it tells nothing."""
        if name in self.telling:
            self.telling[name][1].cancel()
            await asyncio.gather(self.telling[name][1], return_exceptions=True)

    async def settled(self) -> None:
        """Nothing is held anywhere, and no background task failed."""
        for name, node in self.nodes.items():
            await until(lambda node=node: node.held == (0, 0, 0), f"{name} holds {node.held}")  # type: ignore[misc]
            await until(lambda node=node: len(node.server.tasks) == 0, f"tasks of {name}")  # type: ignore[misc]
            assert node.server.tasks._error is None
            assert node.engine.running == 0
            room = node.server._room
            if room is not None:
                room.validate()
                assert room.waiting == 0
                assert not room._slots
                assert room.prefixes.holds == 0
                for metric in ("prfaas_blocks_in_use", "prfaas_transfers_in_use"):
                    assert await node.metric(metric) == 0


@dataclass(slots=True)
class Pair:
    """A prefill node, a decode node, and hand-overs between them as a head does them."""

    far: Node
    home: Node

    def tokens(self, prompt: str) -> list[int]:
        return [BOS, *prompt.encode()]

    def ticket(
        self,
        transfer: str,
        *,
        signed_for: str | None = None,
        receiver: NodeName | None = None,
        epoch: Epoch | None = None,
        age_s: float = 0,
    ) -> str:
        """A good ticket, unless told otherwise."""
        return mint(
            SECRET.encode(),
            transfer=TransferId(signed_for or transfer),
            epoch=epoch or self.far.identity.epoch,
            node=self.far.identity.name,
            receiver=receiver or self.home.identity.name,
            link=LINK,
            lifetime_s=60,
            now=time.time() - age_s,
        )

    async def prefill(self, transfer: str, tokens: list[int], deadline_ms: int = 0) -> Answer:
        params = TransferParams(
            transfer, do_remote_decode=True, link=LINK, prompt_tokens=len(tokens), deadline_ms=deadline_ms
        )
        return await self.far.complete(tokens, max_tokens=1, kv_transfer_params=msgspec.to_builtins(params))

    def params(self, transfer: str, tokens: list[int], **other: Any) -> dict[str, Any]:
        params = TransferParams(
            transfer,
            do_remote_prefill=True,
            link=LINK,
            remote=[Address(peer.host, peer.port) for peer in self.far.identity.data],
            ticket=self.ticket(transfer),
            connections=2,
            prompt_tokens=len(tokens),
            prompt_hash=prompt_hash(tokens),
        )
        return dict(msgspec.to_builtins(params)) | other

    async def decode(self, transfer: str, prompt: str, *, params: Any = None, **fields: Any) -> Answer:
        """The decode leg alone."""
        params = self.params(transfer, self.tokens(prompt)) | (params or {})
        return await self.home.complete(prompt, kv_transfer_params=params, **fields)

    async def hand_over(self, transfer: str, prompt: str, **fields: Any) -> tuple[Answer, Answer]:
        """Credit, then both legs at once; the prefill's answer and the decode's."""
        assert (await self.home.credit(transfer, len(self.tokens(prompt)))).status == 200
        legs = self.prefill(transfer, self.tokens(prompt)), self.decode(transfer, prompt, **fields)
        prefilled, decoded = await asyncio.gather(*legs)
        return prefilled, decoded
