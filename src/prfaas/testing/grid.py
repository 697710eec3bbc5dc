"""Two clusters in one process, over real HTTP ports: nodes of `noderig`, a prefill service, a gateway.

It knows how the composition roots wire heads (and does the same); the engines compute derived KV in no time, and
tests decide where they wait or fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp

from prfaas.cluster.head import ClusterHead, HeadSettings
from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.shares import LinkShares
from prfaas.cluster.watch import Report
from prfaas.core.ids import ClusterName, LinkName, NodeName
from prfaas.core.routing.router import RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Source
from prfaas.gateway.front import Front, FrontSettings
from prfaas.gateway.gateway import Gateway, GatewaySettings
from prfaas.gateway.sources import ServiceSource
from prfaas.model.text import Text
from prfaas.runtime.client import make_session
from prfaas.runtime.http import Listening, serve
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.service.front import ServiceFront
from prfaas.testing.noderig import LINK, MODEL, SECRET, Answer, Node, Rig, until

HOME, FAR = ClusterName("home"), ClusterName("far")
THRESHOLD = 50
POLL_S = 0.05


@dataclass(slots=True)
class Grid:
    """`far`: a service and `far_nodes`; `home`: a gateway, `home_nodes` that prefill, `decoders`."""

    rig: Rig
    far_nodes: list[Node]
    home_nodes: list[Node]
    decoders: list[Node]
    service: Listening
    head: ClusterHead
    gateway: Gateway
    front: Listening
    session: aiohttp.ClientSession
    tasks: Tasks

    async def post(self, path: str, body: dict[str, object], headers: dict[str, str] | None = None) -> Answer:
        """What the gateway answers."""
        async with self.session.post(self.front.url + path, json=body, headers=headers) as response:
            return Answer(response.status, dict(response.headers), await response.read())

    async def complete(self, prompt: object, headers: dict[str, str] | None = None, **fields: object) -> Answer:
        """A greedy completion by the gateway."""
        return await self.post(
            "/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, **fields}, headers
        )

    @contextlib.asynccontextmanager
    async def asking(self, prompt: object, **fields: Any) -> AsyncGenerator[asyncio.Task[Answer], None]:
        """A completion under way; leaving the block early hangs up."""
        task = asyncio.create_task(self.complete(prompt, **fields))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def outcomes(self) -> dict[tuple[str, str], float]:
        """`prfaas_requests_total` of the gateway: (route, outcome) -> count."""
        found = {}
        for family in self.gateway.metrics.registry.collect():
            for sample in family.samples:
                if sample.name == "prfaas_requests_total":
                    found[sample.labels["route"], sample.labels["outcome"]] = sample.value
        return found

    async def known(self) -> None:
        """The gateway has seen every node ready."""
        await until(lambda: self.gateway.sees(FAR) == len(self.far_nodes), "far is seen")
        await until(lambda: self.gateway.sees(HOME) == len(self.home_nodes), "home is seen")
        await until(lambda: self.gateway.decoders_ready == len(self.decoders), "decode nodes are seen")

    async def settled(self) -> None:
        """Nothing is under way, nothing held."""
        await until(lambda: self.gateway.in_flight == 0, "requests in flight")
        await until(lambda: self.head.info().running + self.head.info().queued == 0, "prefills at the service")
        assert len(self.tasks) == 2, "a head died"
        self.gateway.validate()
        await self.rig.settled()


@contextlib.asynccontextmanager
async def two_clusters(
    rig: Rig,
    *,
    far: list[Node],
    home: list[Node],
    decoders: list[Node],
    queue_length: int = 8,
    whole_limit: int = 300,
    deadline_ns: int = 10 * 10**9,
    api_keys: tuple[str, ...] = (),
    max_body_bytes: int = 1 << 20,
    max_requests: int = 1024,
) -> AsyncGenerator[Grid, None]:
    """A grid over nodes that the rig made, up and known to the gateway."""
    tasks = Tasks()
    async with make_session(SECRET) as session, make_session() as public:

        def clients(nodes: list[Node]) -> list[NodeClient]:
            return [NodeClient(session, NodeAddress(node.identity.name, node.listening.url)) for node in nodes]

        def settings(cluster: ClusterName) -> HeadSettings:
            return HeadSettings(cluster, MODEL, queue_length, SECRET.encode(), {LINK: 2}, POLL_S)

        head = ClusterHead(settings(FAR), clients(far), LinkShares({LINK: 10**9}, 2 * 10**9))
        service = await serve(ServiceFront(head, Metrics(), max_body_bytes, SECRET).app(), "127.0.0.1", 0, grace_s=0.1)
        known: list[Gateway] = []

        def home_seen(report: Report) -> None:
            for one in known:
                one.home_seen(report)

        home_head = ClusterHead(settings(HOME), clients(home), LinkShares({}, 10**9), home_seen)
        gateway = Gateway(
            GatewaySettings(
                cluster=HOME,
                model=MODEL,
                sources=(Source(FAR, LINK, False), Source(HOME, LinkName("home->home"), True)),
                policy=RouterPolicy(Threshold(THRESHOLD), whole_limit, attempts=4),
                credit_lease_ms=5000,
                poll_s=POLL_S,
            ),
            clients(decoders),
            [ServiceSource(FAR, NodeClient(session, NodeAddress(NodeName(FAR), service.url)))],
            home_head,
            Metrics(),
        )
        known.append(gateway)
        text = Text.load(rig.directory)
        front = Front(FrontSettings(MODEL, max_body_bytes, deadline_ns, api_keys, 0, max_requests), gateway, text)
        listening = await serve(front.app(), "127.0.0.1", 0, grace_s=0.1)
        tasks.spawn(head.run(), "service head")
        tasks.spawn(gateway.run(), "gateway")
        grid = Grid(rig, far, home, decoders, service, head, gateway, listening, public, tasks)
        try:
            await grid.known()
            yield grid
        finally:
            await listening.close()
            await service.close()
            await tasks.close()
            text.close()
