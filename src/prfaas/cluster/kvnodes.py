"""What a head knows of its nodes' prefix caches: it hears them, follows them, and passes on what changed.

It knows which nodes there are (from the roster), where each is asked and whose hashes are canonical; it does not know
what the index is asked for. A node of ours says in its own words where it answers; of one of vLLM's the file says it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum

from prfaas.cluster.enginemap import Roots
from prfaas.cluster.kvevents import KVEventsReader
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.kvfollow import KVFollower
from prfaas.cluster.roster import Roster, Sight
from prfaas.config.units import Endpoint
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Closed, Opened
from prfaas.core.index.places import Known, Place
from prfaas.runtime.metrics import Metrics
from prfaas.wire.control import NodeInfo

NO_FOREIGN: Mapping[NodeName, Endpoint | None] = {}


class Kind(Enum):
    """How a node's cache is known."""

    OURS = "it tells, in canonical hashes, and answers questions"
    FOREIGN = "it tells, in hashes of its own"
    NONE = "it keeps no prefixes"


class KVNodes:
    """The caches of one cluster's nodes, in the index of `exchange`. `at`: where nodes send their events; `foreign`:
    nodes whose engine has hashes of its own, and where each is asked again what was missed (None: nowhere, so that it
    stays unknown); `secret`: what ours demand of who asks. Raises ConfigError."""

    def __init__(
        self,
        exchange: KVExchange,
        at: Endpoint,
        roster: Roster,
        roots: Roots,
        metrics: Metrics,
        *,
        foreign: Mapping[NodeName, Endpoint | None] = NO_FOREIGN,
        secret: str = "",
    ) -> None:
        self._exchange, self._foreign = exchange, dict(foreign)
        self._cluster: ClusterName = exchange.cluster
        self._follower = KVFollower(self._cluster, exchange.change, roots, secret=secret)
        self._reader = KVEventsReader(at, (), metrics, self._follower.heard)
        self._known: dict[NodeName, tuple[int, Kind]] = {}
        roster.watch(self)

    async def run(self) -> None:
        """Hears and follows, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reader.run(), name="hear KV events")
            group.create_task(self._follower.run(), name="follow KV events")

    def member(self, sight: Sight) -> None:
        """See `roster.Watcher`: a new incarnation is asked what it holds."""
        info = sight.info
        if info is None:
            return
        kind = self._kind(sight.node, info)
        before = self._known.get(sight.node)
        if before == (info.epoch, kind):
            return
        if before is not None and before[1] is not kind:
            self.gone(sight.node)
        self._known[sight.node] = (info.epoch, kind)
        if kind is Kind.NONE:
            self._exchange.change(Opened(self._place(sight.node), Epoch(info.epoch), known=Known.WHOLLY))
            return
        self._reader.hear(sight.node)
        if kind is Kind.FOREIGN:
            replay = self._foreign[sight.node]
        else:
            replay = Endpoint.at(info.kv_events[0].host, info.kv_events[0].port)
        self._follower.met(sight.node, replay, ours=kind is Kind.OURS)

    def gone(self, node: NodeName) -> None:
        """See `roster.Watcher`."""
        known = self._known.pop(node, None)
        if known is None:
            return
        if known[1] is Kind.NONE:
            self._exchange.change(Closed(self._place(node)))
        else:
            self._follower.gone(node)

    def _kind(self, node: NodeName, info: NodeInfo) -> Kind:
        if node in self._foreign:
            return Kind.FOREIGN
        return Kind.OURS if info.kv_events else Kind.NONE

    def _place(self, node: NodeName) -> Place:
        return Place(self._cluster, node)
