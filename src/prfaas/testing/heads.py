"""Heads of a grid: a prefill service and a gateway that can be stopped and started again at the same address.

It knows how the composition roots wire heads, and does the same. Stopped abruptly, a head looks from outside like a
killed process: every connection is reset, and nobody listens.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import aiohttp
from aiohttp import web

from prfaas.cluster.head import ClusterHead, HeadSettings
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.kvnodes import KVNodes
from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.roster import ListedNode, Roster
from prfaas.cluster.shares import LinkShares
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName, LinkName, NodeName
from prfaas.core.index.index import PrefixIndex
from prfaas.core.membership.events import Role
from prfaas.core.membership.members import MemberPolicy
from prfaas.core.routing.router import RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import Back, Source
from prfaas.gateway.front import Front, FrontSettings
from prfaas.gateway.gateway import Gateway, GatewaySettings
from prfaas.gateway.sources import ServiceSource
from prfaas.model.text import Text
from prfaas.runtime.http import IDLE_S, Listening, serve
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.service.front import ServiceFront
from prfaas.testing.noderig import LINK, MODEL, ROOT, SECRET, Node

HOME, FAR = ClusterName("home"), ClusterName("far")
POLL_S = 0.05
LINK_BPS = 10**9
BACK = LinkName("home->far")
Run = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """What tests may set."""

    threshold: int
    queue_length: int
    whole_limit: int
    deadline_ns: int
    api_keys: tuple[str, ...]
    max_body_bytes: int
    max_requests: int
    lease_ns: int
    idle_s: float = IDLE_S
    policy: str = "threshold"
    events: Mapping[ClusterName, Endpoint] = field(default_factory=dict)
    """Where heads hear of prefix caches; none: nobody knows of any."""
    remainder: int = 0
    """See `RouterPolicy`."""
    stale_s: float = 30.0
    """So long may a head be silent until its caches are unknown."""
    back_bps: int | None = None
    """The rate of a link from home to far; None: there is none."""
    copies: bool = True


class Program(ABC):
    """One head. `start` and `stop` as often as wanted; it keeps its port."""

    def __init__(self, name: str, limits: HeadLimits, session: aiohttp.ClientSession, tasks: Tasks) -> None:
        self.listening: Listening
        self._name, self._limits, self._session, self._tasks = name, limits, session, tasks
        self._task: asyncio.Task[Any] | None = None
        self._port = 0

    @abstractmethod
    def make(self) -> tuple[web.Application, Callable[[], Any]]:
        """A new one that knows nothing yet: its application, and what runs it."""

    async def start(self) -> None:
        """A new process, as it were."""
        async with asyncio.timeout(30):
            while True:
                try:
                    app, run = self.make()
                    break
                except ConfigError:  # the one before it still lets go of its port
                    await asyncio.sleep(0.01)
        self.listening = await serve(app, "127.0.0.1", self._port, idle_s=self._limits.idle_s, grace_s=0.1)
        self._port = self.listening.port
        self._task = self._tasks.spawn(run(), self._name)

    async def stop(self, *, abruptly: bool = False) -> None:
        """End it. Harmless when it is not running."""
        task, self._task = self._task, None
        if task is None:
            return
        if abruptly:
            hang_up(self.listening)
        else:
            await self.listening.close()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.listening.close()

    def _roster(
        self,
        cluster: ClusterName,
        roles: tuple[Role, ...],
        nodes: Sequence[tuple[Literal["prefill", "decode"], Node]],
        metrics: Metrics,
        taken: Sequence[Node],
    ) -> Roster:
        listed = [ListedNode(role, NodeAddress(node.identity.name, node.listening.url)) for role, node in nodes]
        policy = MemberPolicy(cluster, MODEL, roles, frozenset(node.identity.name for node in taken))

        def connect(address: NodeAddress) -> NodeClient:
            return NodeClient(self._session, address)

        return Roster(policy, listed, connect, metrics, poll_s=POLL_S, lease_ns=self._limits.lease_ns)

    def _caches(self, cluster: ClusterName, roster: Roster, metrics: Metrics) -> tuple[KVExchange, list[Run]]:
        exchange, at = KVExchange(cluster, PrefixIndex()), self._limits.events.get(cluster)
        if at is None:
            return exchange, []
        nodes = KVNodes(exchange, at, roster, lambda salt, adapter: ROOT, metrics, secret=SECRET)
        return exchange, [nodes.run]

    def _head(
        self, cluster: ClusterName, roster: Roster, shares: LinkShares, changed: Callable[[], None] = lambda: None
    ) -> ClusterHead:
        link = LINK if cluster == FAR else BACK
        settings = HeadSettings(cluster, MODEL, self._limits.queue_length, SECRET.encode(), {link: 2})
        return ClusterHead(settings, roster, shares, changed)


class ServiceProgram(Program):
    """The prefill service of `far`."""

    def __init__(
        self, limits: HeadLimits, session: aiohttp.ClientSession, tasks: Tasks, nodes: list[Node], taken: list[Node]
    ) -> None:
        super().__init__("service head", limits, session, tasks)
        self._nodes, self._taken = nodes, taken

    def make(self) -> tuple[web.Application, Callable[[], Any]]:
        """See `Program.make`."""
        self.metrics = Metrics()
        roster = self._roster(FAR, ("prefill",), [("prefill", n) for n in self._nodes], self.metrics, self._taken)
        self.head = self._head(FAR, roster, LinkShares({LINK: LINK_BPS}, 2 * 10**9))
        exchange, runs = self._caches(FAR, roster, self.metrics)
        known = exchange if runs else None
        front = ServiceFront(self.head, self.metrics, self._limits.max_body_bytes, SECRET, known)
        return front.app(), partial(_together, [self.head.run, *runs])


class GatewayProgram(Program):
    """The gateway of `home`; `service_url` is where `far` is."""

    def __init__(
        self,
        limits: HeadLimits,
        session: aiohttp.ClientSession,
        tasks: Tasks,
        nodes: list[Node],
        decoders: list[Node],
        taken: list[Node],
        service_url: str,
        text: Text,
    ) -> None:
        super().__init__("gateway", limits, session, tasks)
        self._nodes, self._decoders, self._taken = nodes, decoders, taken
        self._service_url, self._text = service_url, text

    def make(self) -> tuple[web.Application, Callable[[], Any]]:
        """See `Program.make`."""
        limits, metrics = self._limits, Metrics()
        known: list[Gateway] = []

        def changed() -> None:
            for one in known:
                one.home_changed()

        nodes: list[tuple[Role, Node]] = [("prefill", node) for node in self._nodes]
        nodes += [("decode", node) for node in self._decoders]
        roster = self._roster(HOME, ("prefill", "decode"), nodes, metrics, self._taken)
        exchange, runs = self._caches(HOME, roster, metrics)
        if limits.events:
            follow = partial(exchange.follow, wait_ms=200, stale_s=limits.stale_s, pause_s=0.02)
            runs.append(partial(follow, FAR, self._service_url, self._session))
        self.index = exchange.index
        back = Back(BACK, limits.back_bps) if limits.back_bps is not None else None
        rates = {BACK: limits.back_bps} if limits.back_bps is not None else {}
        gateway = Gateway(
            GatewaySettings(
                cluster=HOME,
                model=MODEL,
                sources=(
                    Source(FAR, LINK, False, LINK_BPS, back=back),
                    Source(HOME, LinkName("home->home"), True),
                ),
                policy=RouterPolicy(
                    Threshold(limits.threshold),
                    limits.whole_limit,
                    4,
                    limits.policy,
                    remainder=limits.remainder,
                    copies=limits.copies,
                ),
                credit_lease_ms=5000,
                poll_s=POLL_S,
            ),
            [ServiceSource(FAR, NodeClient(self._session, NodeAddress(NodeName(FAR), self._service_url)))],
            self._head(HOME, roster, LinkShares(rates, 10**9), changed),
            metrics,
            exchange.index if limits.events else None,
            ROOT,
        )
        known.append(gateway)
        self.gateway = gateway
        settings = FrontSettings(
            MODEL, limits.max_body_bytes, limits.deadline_ns, limits.api_keys, 0, limits.max_requests, SECRET
        )
        return Front(settings, gateway, self._text).app(), partial(_together, [gateway.run, *runs])


async def _together(runs: Sequence[Run]) -> None:
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(run())


def hang_up(listening: Listening) -> None:
    """Stop listening at once and reset what is connected, and soon again: some may just have been accepted."""
    runner: Any = listening._runner
    for site in list(runner.sites):
        site._server.close()

    def reset() -> None:
        for handler in list(runner.server.connections if runner.server is not None else ()):
            if handler.transport is not None:
                handler.transport.abort()

    reset()
    for later_s in (0.0, 0.05):
        asyncio.get_running_loop().call_later(later_s, reset)
