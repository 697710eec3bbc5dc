"""The scheduler's side of the connector: which legs there are, and what the workers are to do about them each step.

It knows vLLM's requests and scheduler output by their fields; what a leg goes through is in `sends` and `loads`. It has
no clock of its own and starts nothing: what happens to transfers it hears from the workers' reports.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from prfaas.core.errors import RequestError
from prfaas.engine.vllm.groups import Group
from prfaas.engine.vllm.loads import Loads
from prfaas.engine.vllm.orders import Orders, Report
from prfaas.engine.vllm.params import check_prompt, params_of
from prfaas.engine.vllm.sends import Sends

log = logging.getLogger(__name__)
REST_S = 0.003
"""vLLM has an engine that only waits for KV step again after a millisecond, and its processes spin in between. So it
rests: what landed is seen as much later at most, and so is a request that comes."""


class SchedulerSide:
    """One engine's legs. `workers`: how many must have landed; `recompute_below`: see `loads`; `rest`: stands still for
    so many seconds."""

    def __init__(
        self, groups: tuple[Group, ...], workers: int, recompute_below: int, rest: Callable[[float], None] = time.sleep
    ) -> None:
        self._rest = rest
        self._orders = Orders()
        self._block_tokens = math.lcm(*(group.block_tokens for group in groups))
        self._sends = Sends(groups)
        self._loads = Loads(groups, workers, recompute_below)
        self._manager: Any = None

    def bind(self, manager: Any) -> None:
        """vLLM's cache manager, for the local prefix and for what must not be found again."""
        self._manager = manager

    def new_request(self, request: Any) -> None:
        """A request came. What is wrong with its parameters becomes a failed load: vLLM has no other way to refuse."""
        try:
            params = params_of(request.kv_transfer_params)
            if params is None:
                return
            check_prompt(params, request.prompt_token_ids)
        except RequestError as error:
            log.error("request %s refused: %s", request.request_id, error)
            self._loads.refuse(request.request_id)
            return
        if params.do_remote_decode:
            self._sends.begin(request, params, self._orders)
        else:
            self._loads.begin(request, params, self._orders)

    def matched(self, request: Any, local: int) -> tuple[int | None, bool]:
        """`get_num_new_matched_tokens`."""
        return self._loads.matched(request, local, self._orders)

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """`update_state_after_alloc`."""
        torn = self._loads.allocated(request.request_id, blocks.get_block_ids, external, self._orders)
        if torn:
            self._manager.evict_blocks(torn)

    def orders(self, output: Any) -> Orders:
        """This step's orders, for `build_connector_meta`."""
        self._loads.begin_rest(self._local_hit, self._orders)
        self._sends.step(output, self._orders)
        orders, self._orders = self._orders, Orders()
        if not orders and not output.total_num_scheduled_tokens and self._loads.only_coming:
            self._rest(REST_S)
        return orders

    def heard(self, report: Report) -> None:
        """What the workers say."""
        self._loads.heard(report, self._orders)
        self._orders.paces += report.paces

    def finished(self, request: Any, table: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """`request_finished_all_groups`: whether the blocks are held, and what the client is told."""
        self._loads.finished(request.request_id, self._orders)
        return self._sends.finished(request.request_id, table, self._orders)

    @property
    def pending(self) -> bool:
        """Whether orders wait for a step."""
        return bool(self._orders)

    def _local_hit(self, request: Any) -> int:
        # vLLM shows connectors whole blocks only.
        found: int = self._manager.get_computed_blocks(request)[1]
        return found - found % self._block_tokens
