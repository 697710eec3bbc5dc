"""A gateway, wired: router, legs, reports of the world. The HTTP front stands before it (`front`).

It knows its parts and lets them meet; it decides nothing and speaks no HTTP of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from prfaas.cluster.head import ClusterHead
from prfaas.core.errors import RemoteError
from prfaas.core.ids import ClusterName, RequestId
from prfaas.core.index.index import PrefixIndex
from prfaas.core.routing.effects import Decided, Ended, RequestEffect
from prfaas.core.routing.events import Answered, Arrived, ClientGone, LegFailed
from prfaas.core.routing.router import Router, RouterEvent, RouterPolicy
from prfaas.core.routing.view import Source, SourceSeen
from prfaas.gateway.caches import Caches
from prfaas.gateway.decoders import Decoders
from prfaas.gateway.exchange import Exchange, Upstream
from prfaas.gateway.legs import Legs, LegSettings
from prfaas.gateway.sources import HomeSource, PrefillSource, ServiceSource, seen_at_home
from prfaas.runtime.driver import Driver
from prfaas.runtime.metrics import Metrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What a gateway needs of the topology. `sources` in the topology's order, our own cluster among them."""

    cluster: ClusterName
    model: str
    sources: tuple[Source, ...]
    policy: RouterPolicy
    credit_lease_ms: int
    poll_s: float


class Gateway:
    """Serves exchanges. `head` is our own cluster's, its roster has our nodes; `services` are those of others. `index`:
    what is cached in all of them, by hashes that begin with `root`; None: all counts as not cached, and nobody says
    so."""

    def __init__(
        self,
        settings: GatewaySettings,
        services: Sequence[ServiceSource],
        head: ClusterHead,
        metrics: Metrics,
        index: PrefixIndex | None = None,
        root: int = 0,
    ) -> None:
        self.settings = settings
        self.metrics = metrics
        self._head = head
        self._services = services
        self._router = Router(settings.cluster, settings.sources, settings.policy)
        self._caches = Caches(index, root, self._router.view) if index is not None else None
        self._driver: Driver[RouterEvent, RequestEffect] = Driver(self._router, self._perform)
        self._decoders = Decoders(self._router.view, self._driver.post)
        self.roster = head.roster
        self.roster.serve("decode", self._decoders)
        sources: dict[ClusterName, PrefillSource] = {settings.cluster: HomeSource(head)}
        sources |= {service.cluster: service for service in services}
        leg_settings = LegSettings(
            settings.model, settings.cluster, settings.credit_lease_ms, self._decoders.layout, self._decoders.ranks
        )
        self._legs = Legs(leg_settings, self.roster.clients, sources, metrics, self._driver.post, self._trouble)

    @property
    def hash_root(self) -> int | None:
        """What the hashes of a prompt's blocks begin with; None where nobody needs them."""
        return self._caches.root if self._caches is not None else None

    @property
    def ready(self) -> bool:
        """Whether some decode node can answer."""
        return self._decoders.ready > 0

    @property
    def max_model_len(self) -> int:
        """Tokens that the roomiest ready decode node takes; 0 when none is ready."""
        return self._decoders.max_model_len

    @property
    def in_flight(self) -> int:
        """Requests that are being served."""
        return len(self._legs.exchanges)

    def validate(self) -> None:
        """Raises InvariantError when the router, the queue or the roster contradicts itself."""
        self._router.validate()
        self._head.validate()

    def sees(self, cluster: ClusterName) -> int:
        """Prefill nodes that are ready in `cluster`, as last heard."""
        seen = self._router.view.seen.get(cluster)
        return seen.ready if seen is not None else 0

    @property
    def decoders_ready(self) -> int:
        """Decode nodes that are ready, as last heard."""
        return self._decoders.ready

    async def run(self) -> None:
        """Keeps the view fresh, until cancelled; then ends every leg."""
        self.home_changed()  # where it has no prefill nodes nothing else would say so
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._head.run(), name="cluster head")
                for service in self._services:
                    group.create_task(
                        service.follow(self.settings.poll_s, self._source_seen), name=f"follow {service.cluster}"
                    )
        finally:
            self._driver.close()
            await self._legs.close()

    def arrive(self, exchange: Exchange, stays: str) -> None:
        """A request begins; its `verdict` will be given."""
        self._legs.exchanges[exchange.request] = exchange
        if self._caches is not None and not stays:
            exchange.cached = self._caches.of(exchange.prompt.blocks)
        arrived = Arrived(exchange.request, exchange.prompt.tokens, exchange.deadline_ns, stays, exchange.cached)
        self._driver.post(arrived)

    def answered(self, exchange: Exchange, upstream: Upstream) -> None:
        """The whole answer was written to the client; whatever it does now, it was served."""
        self._driver.post(Answered(exchange.request, upstream.attempt))

    def broke(self, exchange: Exchange, upstream: Upstream, trouble: str) -> None:
        """The client was told as much as there will be."""
        self._driver.post(LegFailed(exchange.request, upstream.attempt, "decode", "broken_stream", trouble))

    def leave(self, request: RequestId) -> None:
        """The client of a request that may still run has gone."""
        if request in self._legs.exchanges:
            self._driver.post(ClientGone(request))

    def home_changed(self) -> None:
        """Our own prefill nodes changed, or were looked at."""
        seen = seen_at_home(self.settings.cluster, self._head)
        self.metrics.source_ready(seen.cluster, seen.ready)
        self._driver.post(seen)

    def _perform(self, now_ns: int, effect: RequestEffect) -> None:
        exchange = self._legs.exchanges[effect.request]
        before = exchange.decided.node if exchange.decided is not None else None
        self._legs.perform(now_ns, effect)
        if before is not None and isinstance(effect, Decided | Ended):
            self.roster.work_ended(before)  # elsewhere from now, or over

    def _source_seen(self, seen: SourceSeen) -> None:
        known = self._router.view.seen.get(seen.cluster)
        if known is None or (known.ready > 0) != (seen.ready > 0):
            log.info("prefill cluster", cluster=seen.cluster, ready=seen.ready, trouble=seen.trouble)
        self.metrics.source_ready(seen.cluster, seen.ready)
        self._driver.post(seen)

    def _trouble(self, decided: Decided, leg: str, failure: RemoteError) -> None:
        """A leg found somebody unreachable: known before the next look."""
        if leg != "prefill":
            self.roster.trouble(decided.node, str(failure))
        elif decided.cluster != self.settings.cluster:
            self._source_seen(SourceSeen(decided.cluster, 0, 0, 0, 0, str(failure)))
