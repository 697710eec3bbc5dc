"""Clusters that can prefill for this gateway: its own head, and prefill services of others.

It knows how to ask for a prefill and for a cluster's state. It does not know when to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Protocol

from prfaas.cluster.head import ClusterHead
from prfaas.cluster.nodeclient import NodeClient
from prfaas.cluster.offers import misfit
from prfaas.cluster.watch import look, look_timeout_s
from prfaas.core.errors import PeerFailure, RemoteError
from prfaas.core.ids import ClusterName, TransferId
from prfaas.core.routing.curve import curve_of
from prfaas.core.routing.view import JobSeen, SourceSeen
from prfaas.wire.control import (
    LISTED,
    ClusterInfo,
    PrefillInfo,
    PrefillRequest,
    PrefillUpdate,
    PrefixOffer,
    PrefixRequest,
    PrefixSource,
    PrefixUpdate,
)

SUPPLY_S = 5.0


class PrefillSource(Protocol):
    """Something that prefills for us."""

    def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        """`queued`, `bound`, then `done` or `failed`. Closing it withdraws. Raises PeerFailure when it cannot be
        asked."""

    async def supply(self, transfer: TransferId, source: PrefixSource | None) -> None:
        """What a prefill that is bound may fetch first; None: nothing after all. Raises RemoteError."""

    def lend(self, request: PrefixRequest) -> AsyncGenerator[PrefixUpdate, None]:
        """`lent`, then `done` or `failed`. Closing it ends the loan. Raises RemoteError when it cannot be asked."""


class HomeSource:
    """Our own cluster's head."""

    def __init__(self, head: ClusterHead) -> None:
        self._head = head

    def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        """See PrefillSource."""
        return self._head.prefill(request)

    async def supply(self, transfer: TransferId, source: PrefixSource | None) -> None:
        """See PrefillSource. Raises PeerFailure, "late" or "invalid_value", as a service answers."""
        wrong = misfit(transfer, source) if source is not None else ""
        if wrong:
            raise PeerFailure("invalid_value", f"prefix: {wrong}")
        if not self._head.supply(transfer, source):
            raise PeerFailure("late", f"no prefill {transfer} waits for a prefix, or any more")

    def lend(self, request: PrefixRequest) -> AsyncGenerator[PrefixUpdate, None]:
        """See PrefillSource."""
        return self._head.lend(request)


class ServiceSource:
    """The prefill service of another cluster, over HTTP. `client` is its address and bearer."""

    def __init__(self, cluster: ClusterName, client: NodeClient) -> None:
        self.cluster = cluster
        self._client = client

    async def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        """See PrefillSource. A stream that ends without a last word is a failure."""
        async with contextlib.aclosing(self._client.lines("/prfaas/v1/prefill", request, PrefillUpdate)) as updates:
            async for update in updates:
                yield update
                if update.state in ("done", "failed"):
                    return
        raise PeerFailure("unreachable", f"the prefill service of {self.cluster} hung up")

    async def supply(self, transfer: TransferId, source: PrefixSource | None) -> None:
        """See PrefillSource."""
        await self._client.supply(transfer, PrefixOffer(source), SUPPLY_S)

    def lend(self, request: PrefixRequest) -> AsyncGenerator[PrefixUpdate, None]:
        """See PrefillSource. A stream that ends without a last word is for the caller to see."""
        return self._client.lines("/prfaas/v1/prefix", request, PrefixUpdate)

    async def follow(self, period_s: float, listen: Callable[[SourceSeen], None]) -> None:
        """Asks for the cluster's state every `period_s`, until cancelled."""
        while True:
            try:
                info = await look(self._info, look_timeout_s(period_s))
                listen(_seen(self.cluster, info))
            except RemoteError as failure:
                listen(SourceSeen(self.cluster, 0, 0, 0, 0, str(failure)))
            await asyncio.sleep(period_s)

    async def _info(self, timeout_s: float) -> ClusterInfo:
        return await self._client.get("/prfaas/v1/cluster", ClusterInfo, timeout_s)


def seen_at_home(cluster: ClusterName, head: ClusterHead) -> SourceSeen:
    """The state of our own cluster's prefill side."""
    return _seen(cluster, head.info())


def _seen(cluster: ClusterName, info: ClusterInfo) -> SourceSeen:
    return SourceSeen(
        cluster,
        info.ready,
        info.queued,
        info.running,
        info.max_model_len,
        info.trouble,
        _jobs(info.waiting),
        _jobs(info.at_work),
        max(0, info.waiting_tokens),
        max(0, info.at_work_tokens),
        curve_of(info.prefill_ns),
        info.nodes,
        info.copies,
    )


def _jobs(listed: list[PrefillInfo]) -> tuple[JobSeen, ...]:
    """As many as may be listed; lengths and times that no prefill has are taken as the least."""
    return tuple(
        JobSeen(TransferId(one.transfer), max(1, one.tokens), max(0, one.ms) * 1_000_000) for one in listed[:LISTED]
    )
