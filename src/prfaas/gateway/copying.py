"""A copy of a prefix, for a prefill that is bound: lent by one cluster, offered to the node of another.

It knows sources and what was decided; it does not know whether that pays. Whatever goes wrong, the prefill is told that
nothing comes, and computes; nothing of it is an error of the request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

import msgspec
import structlog

from prfaas.core.errors import RemoteError
from prfaas.core.ids import ClusterName, TransferId
from prfaas.core.routing.copying import Copy
from prfaas.gateway.sources import PrefillSource
from prfaas.runtime.metrics import Metrics
from prfaas.wire.control import PrefixRequest, PrefixSource, PrefixUpdate

log = structlog.get_logger(__name__)
MS = 1_000_000
GRACE_MS = 1000
"""The lender hears from the receiver, which gives up first, and need not guess."""


def patience_ms(copy: Copy | None) -> int:
    """For how long a copy is better than computing; 0 where there is none."""
    return max(1, copy.patience_ns // MS) if copy is not None and copy.made else 0


class Copying:
    """Of one gateway."""

    def __init__(self, sources: Mapping[ClusterName, PrefillSource], metrics: Metrics) -> None:
        self._sources, self._metrics = sources, metrics

    async def run(
        self, copy: Copy, to: ClusterName, transfer: TransferId, receiver: str, layout: str, tokens: msgspec.Raw
    ) -> None:
        """`copy` goes to node `receiver` of cluster `to`, before it computes `transfer`. Returns when the loan is over;
        cancelled, it ends it."""
        name = f"{transfer}.prefix"
        asked = PrefixRequest(
            transfer_id=name,
            node=copy.node,
            layout=layout,
            receiver=receiver,
            link=copy.link,
            tokens=tokens,
            length=copy.tokens,
            deadline_ms=patience_ms(copy) + GRACE_MS,
        )
        outcome = PrefixUpdate("failed", code="unreachable", detail=f"{copy.cluster} hung up")
        try:
            async with contextlib.aclosing(self._sources[copy.cluster].lend(asked)) as updates:
                async for outcome in updates:
                    if outcome.state == "lent":
                        source = PrefixSource(
                            name,
                            copy.tokens,
                            copy.link,
                            outcome.remote,
                            outcome.ticket,
                            patience_ms(copy),
                            outcome.connections,
                        )
                        self._metrics.longer_prefix("lent")
                        await self._sources[to].supply(transfer, source)
                    else:
                        break
        except RemoteError as failure:
            outcome = PrefixUpdate("failed", code=failure.code, detail=failure.detail)
        if outcome.state == "failed":
            self._metrics.longer_prefix(outcome.code)
            log.info("prefix not copied", transfer=transfer, code=outcome.code, detail=outcome.detail)
            with contextlib.suppress(RemoteError):
                await self._sources[to].supply(transfer, None)
