"""`PrfaasConnector`: vLLM's KV connector interface over our scheduler's and workers' sides.

    --kv-transfer-config '{"kv_connector": "PrfaasConnector", "kv_role": "kv_both",
        "kv_connector_module_path": "prfaas.engine.vllm.connector", "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"topology": FILE, "cluster": CLUSTER, "node": NODE}}'

It knows vLLM 0.32's classes, and is the only place that does; what is done is in `scheduler` and `worker`.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import vllm
from vllm.distributed import get_tp_group
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats

from prfaas.core.errors import ConfigError
from prfaas.core.ids import Epoch
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.layout import cache_map, groups_of
from prfaas.engine.vllm.mover import Engine, Mover
from prfaas.engine.vllm.orders import Orders, Report
from prfaas.engine.vllm.pages import Pages
from prfaas.engine.vllm.place import Place
from prfaas.engine.vllm.prom import PromMetrics
from prfaas.engine.vllm.revision import revision_of
from prfaas.engine.vllm.scheduler import SchedulerSide
from prfaas.engine.vllm.settings import read_settings
from prfaas.engine.vllm.staging import staging_for
from prfaas.engine.vllm.tally import added
from prfaas.engine.vllm.version import require_supported
from prfaas.engine.vllm.worker import WorkerSide

log = logging.getLogger(__name__)

KVConnectorMetadata.register(Orders)
KVConnectorWorkerMetadata.register(Report)


class PrfaasStats(KVConnectorStats):  # type: ignore[misc]
    """Transfers, failures, bytes and seconds, as `tally` sums them up."""

    def reset(self) -> None:
        """Forget all."""
        self.data: dict[str, float] = {}

    def aggregate(self, other: Any) -> PrfaasStats:
        """Add `other`."""
        self.data = added(self.data, other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        """For the log."""
        return dict(self.data)

    def is_empty(self) -> bool:
        """Whether nothing ended."""
        return not self.data


class PrfaasConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """See the module. One of two sides, by `role`; a call for the other side is vLLM's bug."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        require_supported(vllm.__version__)
        _require_simple(vllm_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._settings = read_settings(extra)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        if role == KVConnectorRole.SCHEDULER:
            groups = groups_of(kv_cache_config)
            workers = vllm_config.parallel_config.tensor_parallel_size
            self._scheduler = SchedulerSide(groups, workers, self._settings.recompute_below)
        else:
            self._cache = cache_map(kv_cache_config)

    # The workers' side.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """The cache tensors: with them, the mover can start."""
        config, blocks = self._vllm_config, self._kv_cache_config.num_blocks
        device = next(iter(kv_caches.values())).device
        staging = staging_for(device)
        isas = _isas(config, self._cache.layers) if device.type == "cpu" else {}
        pages = Pages(self._cache, kv_caches, blocks, isas, staging)
        model, place = config.model_config, _place()
        revision = self._settings.revision or revision_of(model)
        layout = self._cache.layout(revision, place.ranks, lambda layer: _kv_heads(model, layer))
        deals = Deals(layout, place.rank, place.ranks)
        engine = Engine(model.max_model_len, config.scheduler_config.max_num_seqs)
        worker = WorkerSide(self._cache, pages, deals)
        worker.mover = Mover(self._settings, deals, engine, place, worker.blocks_held)
        worker.mover.start()
        self._worker = worker
        log.info("prfaas: node %s takes KV on %s", self._settings.node.name, self._settings.data)

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """A step begins."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads are whole before their blocks are used: nothing waits layer by layer."""
        if self._worker is not None:
            self._worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """See start_load_kv."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Rows leave while the next layers compute."""
        if self._worker is not None:
            self._worker.save_layer(layer_name)

    def wait_for_save(self) -> None:
        """States leave after the last layer."""
        if self._worker is not None:
            self._worker.save_rest()

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        """Blocks that may go, loads that are over or failed."""
        if self._worker is None:
            return KVConnectorTransferResults()
        sent, received, failed = self._worker.finished()
        return KVConnectorTransferResults(finished_sending=sent, finished_recving=received, failed_recving=failed)

    def build_connector_worker_meta(self) -> Any:
        """What the scheduler's side must hear."""
        return self._worker.report() if self._worker is not None else None

    def get_kv_connector_stats(self) -> Any:
        """What ended since the last call."""
        data = self._worker.tally.take() if self._worker is not None else {}
        return PrfaasStats(data=data) if data else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """From what came from another process."""
        return PrfaasStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """The same in vLLM's own `/metrics`."""
        return PromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Rows leave layer by layer, which a whole captured graph would skip."""
        return True

    def shutdown(self) -> None:
        """Transfers that are open fail."""
        if self._worker is not None:
            self._worker.mover.close()

    # The scheduler's side.

    @property
    def _side(self) -> SchedulerSide:
        assert self._scheduler is not None
        return self._scheduler

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """For the local prefix of requests that are not asked for yet."""
        super().bind_kv_cache_manager(kv_cache_manager)
        self._side.bind(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        """A request came."""
        self._side.new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Late admission: None until all has landed."""
        return self._side.matched(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        """None: vLLM would not zero their new blocks then, but a last block is filled in part only, and what an
        attention kernel reads of the rest must not be another layer's bytes."""
        return ()

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Blocks are there."""
        self._side.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        """This step's orders."""
        return self._side.orders(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers say."""
        report = connector_output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._side.heard(report)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See request_finished_all_groups."""
        return self._side.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """A prefill's blocks are held until its transfer is over."""
        return self._side.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Orders need a step to reach the workers."""
        return self._scheduler is not None and self._scheduler.pending


def _require_simple(config: Any) -> None:
    """Raises ConfigError for ways to run vLLM that this connector does not serve yet."""
    parallel = config.parallel_config
    for name in (
        "data_parallel_size",
        "pipeline_parallel_size",
        "decode_context_parallel_size",
        "prefill_context_parallel_size",
    ):
        if getattr(parallel, name, 1) > 1:
            raise ConfigError(
                f"{name} {getattr(parallel, name)}: PrfaasConnector knows tensor parallelism only, so far"
            )
    if config.speculative_config is not None:
        raise ConfigError("PrfaasConnector does not move the cache of speculative decoding, so far")


def _place() -> Place:
    """This worker's. The first one's clock gives all of them their epoch."""
    group = get_tp_group()
    epoch = group.broadcast_object(time.time_ns() if group.rank_in_group == 0 else None, src=0)
    return Place(group.rank_in_group, group.world_size, Epoch(epoch))


def _kv_heads(model: Any, layer: int) -> int:
    """KV heads of a layer, over all workers; 0 when that is not known."""
    if getattr(model.hf_text_config, "block_configs", None):
        return 0  # one number for layers that differ
    try:
        return int(model.model_arch_config[layer].total_num_kv_heads or 0)
    except IndexError:
        return 0


def _isas(config: Any, layers: Any) -> dict[str, str]:
    """The instruction set that each CPU attention layer's kernel packs its cache for."""
    context = config.compilation_config.static_forward_context
    return {name: context[name].isa for name in layers if hasattr(context.get(name), "isa")}
