"""Two clusters in one process, over real HTTP ports: nodes of `noderig`, a prefill service, a gateway.

It knows which nodes and heads there are; the engines compute derived KV in no time, and tests decide where they wait or
fail, and what is stopped and started again (`heads`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from prfaas.cluster.head import ClusterHead
from prfaas.config.units import Endpoint
from prfaas.core.ids import ClusterName
from prfaas.gateway.gateway import Gateway
from prfaas.model.text import Text
from prfaas.runtime.client import make_session
from prfaas.runtime.http import IDLE_S, Listening
from prfaas.runtime.tasks import Tasks
from prfaas.testing.heads import FAR, HOME, GatewayProgram, HeadLimits, ServiceProgram
from prfaas.testing.noderig import MODEL, SECRET, Answer, Node, Rig, until

THRESHOLD = 50


@dataclass(slots=True)
class Grid:
    """`far`: a service and `far_nodes`; `home`: a gateway, `home_nodes` that prefill, `decoders`."""

    rig: Rig
    far_nodes: list[Node]
    home_nodes: list[Node]
    decoders: list[Node]
    far_head: ServiceProgram
    home_head: GatewayProgram
    session: aiohttp.ClientSession
    tasks: Tasks

    @property
    def service(self) -> Listening:
        """Where the prefill service listens."""
        return self.far_head.listening

    @property
    def head(self) -> ClusterHead:
        """The prefill service's."""
        return self.far_head.head

    @property
    def gateway(self) -> Gateway:
        """The gateway of the time being."""
        return self.home_head.gateway

    @property
    def front(self) -> Listening:
        """Where the gateway listens."""
        return self.home_head.listening

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
        self.head.validate()
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
    idle_s: float = IDLE_S,
    max_requests: int = 1024,
    lease_ns: int = 5 * 10**9,
    policy: str = "threshold",
    threshold: int = THRESHOLD,
    events: Mapping[ClusterName, Endpoint] | None = None,
    remainder: int = 0,
    stale_s: float = 30.0,
    back_bps: int | None = None,
    copies: bool = True,
) -> AsyncGenerator[Grid, None]:
    """A grid over nodes that the rig made, up and known to the gateway."""
    limits = HeadLimits(
        threshold,
        queue_length,
        whole_limit,
        deadline_ns,
        api_keys,
        max_body_bytes,
        max_requests,
        lease_ns,
        idle_s,
        policy,
        events or {},
        remainder,
        stale_s,
        back_bps,
        copies,
    )
    tasks, text, listed = Tasks(), Text.load(rig.directory), [*far, *home, *decoders]
    async with make_session(SECRET) as session, make_session() as public:
        service = ServiceProgram(limits, session, tasks, far, listed)
        await service.start()
        gateway = GatewayProgram(limits, session, tasks, home, decoders, listed, service.listening.url, text)
        await gateway.start()
        grid = Grid(rig, far, home, decoders, service, gateway, public, tasks)
        try:
            await grid.known()
            yield grid
        finally:
            await gateway.stop()
            await service.stop()
            await tasks.close()
            text.close()


__all__ = ["FAR", "HOME", "THRESHOLD", "Grid", "two_clusters"]
