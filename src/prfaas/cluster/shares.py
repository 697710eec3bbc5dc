"""Leasing a link's rate to the nodes that send on it: the driver of `core.transfer.pacing.Shares`.

It knows which transfers run where and calls nodes with their share. It does not know what the transfers carry. A
link without a rate (a hand-over inside one cluster) is not paced.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping

import structlog

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.errors import RemoteError
from prfaas.core.ids import LinkName, NodeName, TransferId
from prfaas.core.transfer.pacing import Grant, Shares
from prfaas.runtime.driver import loop_now_ns
from prfaas.wire.control import PaceLease

log = structlog.get_logger(__name__)
FLIGHT_NS = 1_000_000_000
"""A grant that a node has not confirmed after this is taken to be lost, or late at the worst by as much."""


class LinkShares:
    """`rates`: bits a second of each paced link. A lease of `lease_ns` is renewed at a third of its life."""

    def __init__(self, rates: Mapping[LinkName, int], lease_ns: int) -> None:
        # Fences grow over restarts of this program, since each starts at the wall clock.
        self._links = {link: _Link(link, rate, lease_ns, time.time_ns()) for link, rate in rates.items()}

    @contextlib.asynccontextmanager
    async def hold(self, link: LinkName, client: NodeClient, transfer: TransferId) -> AsyncIterator[None]:
        """While the block runs, `transfer` of that node counts for a share of `link`."""
        paced = self._links.get(link)
        if paced is None:
            yield
            return
        paced.begin(client)
        try:
            yield
        finally:
            paced.end(client)

    async def run(self) -> None:
        """Hands out and renews leases, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for paced in self._links.values():
                group.create_task(paced.run(), name=f"shares of {paced.link}")


class _Link:
    """One link: who is active, and the leases that are out."""

    def __init__(self, link: LinkName, rate_bps: int, lease_ns: int, first_fence: int) -> None:
        self.link = link
        self._shares = Shares(rate_bps, lease_ns, FLIGHT_NS, first_fence)
        self._active: dict[NodeName, int] = {}
        self._clients: dict[NodeName, NodeClient] = {}
        self._kick = asyncio.Event()

    def begin(self, client: NodeClient) -> None:
        name = client.node.name
        self._clients[name] = client
        self._count(name, +1)

    def end(self, client: NodeClient) -> None:
        self._count(client.node.name, -1)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._kick.clear()
                for grant in self._shares.grants(loop_now_ns()):
                    group.create_task(self._tell(grant), name=f"pace {grant.node}")
                await self._until_due()

    def _count(self, name: NodeName, change: int) -> None:
        self._active[name] = self._active.get(name, 0) + change
        self._shares.active(name, self._active[name])
        self._kick.set()

    async def _until_due(self) -> None:
        due_ns = self._shares.next_ns(loop_now_ns())
        left_s = None if due_ns is None else max(0.001, (due_ns - loop_now_ns()) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._kick.wait()

    async def _tell(self, grant: Grant) -> None:
        name = NodeName(grant.node)
        lease = PaceLease(self.link, grant.rate_bps, grant.lease_ns // 1_000_000, grant.fence)
        try:
            await self._clients[name].pace(lease, FLIGHT_NS / 1e9)
        except RemoteError as failure:
            log.warning("pace not delivered", link=self.link, node=name, detail=failure.detail)
            return
        self._shares.acknowledge(loop_now_ns(), name, grant.fence)
        self._kick.set()
