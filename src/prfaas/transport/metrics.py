"""A transport's counts as Prometheus metrics.

It knows the hooks of `stats` and the metrics' names; it does not know which transport calls them.
"""

from __future__ import annotations

from prometheus_client import Counter

from prfaas.core.ids import LinkName
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.outcomes import label
from prfaas.transport.base import Outcome
from prfaas.transport.stats import Side


class MetricStats:
    """`TransferStats` into `metrics`. `prfaas_kv_bytes_total` counts what came in, so that one link is counted once."""

    def __init__(self, metrics: Metrics) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=metrics.registry)

        self._metrics = metrics
        self._sent = counter("prfaas_kv_sent_bytes", "KV bytes handed to connections.", "link")
        self._requeued = counter("prfaas_kv_requeued_chunks", "Chunks sent again after a broken connection.", "link")
        self._corrupt = counter("prfaas_kv_corrupt_chunks", "Chunks whose checksum was wrong.", "link")
        self._refused = counter("prfaas_kv_refusals", "Handshakes refused here.", "code")
        self._dialled = counter("prfaas_kv_connections", "Data connections dialled.")
        self._ended = counter(
            "prfaas_transfers_ended", "Transfers that hold nothing any more.", "link", "side", "cause"
        )

    def sent(self, link: LinkName, size_bytes: int) -> None:
        """See TransferStats."""
        self._sent.labels(link).inc(size_bytes)

    def received(self, link: LinkName, size_bytes: int) -> None:
        """See TransferStats."""
        self._metrics.kv_moved(link, size_bytes)

    def requeued(self, link: LinkName, chunks: int) -> None:
        """See TransferStats."""
        self._requeued.labels(link).inc(chunks)

    def corrupt(self, link: LinkName) -> None:
        """See TransferStats."""
        self._corrupt.labels(link).inc()

    def refused(self, code: str) -> None:
        """See TransferStats."""
        self._refused.labels(code).inc()

    def connected(self) -> None:
        """See TransferStats."""
        self._dialled.inc()

    def ended(self, link: LinkName, side: Side, outcome: Outcome) -> None:
        """See TransferStats."""
        self._ended.labels(link, side, label(outcome.cause)).inc()
