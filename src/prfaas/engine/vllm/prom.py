"""What transfers came to, in vLLM's own `/metrics`. It knows `tally`'s sums and vLLM's ways to count by engine."""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics
from vllm.v1.metrics.utils import create_metric_per_engine

from prfaas.engine.vllm.tally import SUMS

WORDS = {
    "transfers": "KV transfers that ended.",
    "failures": "KV transfers that failed.",
    "cancelled": "KV transfers whose request was aborted, as when its client leaves.",
    "bytes": "KV bytes that crossed.",
    "seconds": "Time in which they crossed.",
}


class PromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """`prfaas:kv_transfers_total` and so on, one for each of `tally.SUMS`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: create_metric_per_engine(
                metric_types[Counter](name=f"prfaas:kv_{name}", documentation=WORDS[name], labelnames=labelnames),
                per_engine_labelvalues,
            )
            for name in SUMS
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what ended since the last time. (MultiConnector hands over the statistics whole, not their data.)"""
        sums = transfer_stats_data.get("data", transfer_stats_data)
        for name, counters in self._counters.items():
            counters[engine_idx].inc(sums.get(name, 0))
