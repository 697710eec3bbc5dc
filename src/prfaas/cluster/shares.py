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

from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.core.errors import RemoteError
from prfaas.core.ids import LinkName, TransferId
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
        paced.begin(client, transfer)
        try:
            yield
        finally:
            paced.end(client, transfer)

    def forget(self, node: NodeAddress) -> None:
        """`node` is gone: no share is kept for it."""
        for paced in self._links.values():
            paced.forget(node)

    async def run(self) -> None:
        """Hands out and renews leases, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for paced in self._links.values():
                group.create_task(paced.run(), name=f"shares of {paced.link}")


class _Link:
    """One link: which transfers run where, and the leases that are out.

    Shares are counted by address, not by name: what restarts at its address takes over the share that was there, and
    what comes back elsewhere gets one of its own while the old lease runs out.
    """

    def __init__(self, link: LinkName, rate_bps: int, lease_ns: int, first_fence: int) -> None:
        self.link = link
        self._shares = Shares(rate_bps, lease_ns, FLIGHT_NS, first_fence)
        self._active: dict[str, set[TransferId]] = {}
        self._clients: dict[str, NodeClient] = {}
        self._kick = asyncio.Event()

    def begin(self, client: NodeClient, transfer: TransferId) -> None:
        self._clients[_key(client.node)] = client
        self._active.setdefault(_key(client.node), set()).add(transfer)
        self._count(client.node)

    def end(self, client: NodeClient, transfer: TransferId) -> None:
        """Harmless for a node that was forgotten."""
        self._active.get(_key(client.node), set()).discard(transfer)
        self._count(client.node)

    def forget(self, node: NodeAddress) -> None:
        """Nothing of it counts, and it is told nothing more: its leases end by themselves."""
        self._active.pop(_key(node), None)
        self._clients.pop(_key(node), None)
        self._shares.forget(_key(node))
        self._kick.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                self._kick.clear()
                for grant in self._shares.grants(loop_now_ns()):
                    client = self._clients.get(grant.node)
                    if client is not None:
                        group.create_task(self._tell(client, grant), name=f"pace {grant.node}")
                await self._until_due()

    def _count(self, node: NodeAddress) -> None:
        key = _key(node)
        if key in self._active:
            self._shares.active(key, len(self._active[key]))
            self._kick.set()

    async def _until_due(self) -> None:
        due_ns = self._shares.next_ns(loop_now_ns())
        left_s = None if due_ns is None else max(0.001, (due_ns - loop_now_ns()) / 1e9)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._kick.wait()

    async def _tell(self, client: NodeClient, grant: Grant) -> None:
        lease = PaceLease(self.link, grant.rate_bps, grant.lease_ns // 1_000_000, grant.fence)
        try:
            await client.pace(lease, FLIGHT_NS / 1e9)
        except RemoteError as failure:
            log.warning("pace not delivered", link=self.link, node=client.node.name, detail=failure.detail)
            return
        self._shares.acknowledge(loop_now_ns(), grant.node, grant.fence)
        self._kick.set()


def _key(node: NodeAddress) -> str:
    return f"{node.name} at {node.url}"
