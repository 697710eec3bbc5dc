"""Prefill legs in the scheduler: what of each request's KV is final after each step, and has not been sent.

It knows requests, steps and block tables; it does not know bytes. Rows that were put never change: a prefill that is
preempted and starts again goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prfaas.engine.vllm.groups import NULL_BLOCK, Group
from prfaas.engine.vllm.orders import Hold, Offer, Orders, Save, Stop
from prfaas.wire.control import TransferParams


@dataclass(slots=True)
class _Send:
    transfer: str
    length: int
    receivers: int
    put: int = 0
    """Rows [0, put) were ordered to leave; with the last row the states too."""

    @property
    def whole(self) -> bool:
        return self.put == self.length


class Sends:
    """By request."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self._groups = groups
        self._sends: dict[str, _Send] = {}

    def begin(self, request: Any, params: TransferParams, orders: Orders) -> None:
        """Offer all but the last token of the prompt, which is dropped: the decode side computes it."""
        drop_last_token(request)
        length = request.num_prompt_tokens
        self._sends[request.request_id] = _Send(params.transfer_id, length, params.receivers)
        orders.offers.append(
            Offer(params.transfer_id, length, params.link, params.epoch, params.deadline_ms, params.receivers)
        )

    def step(self, output: Any, orders: Orders) -> None:
        """Order what this step makes final."""
        if not self._sends:
            return
        cached = output.scheduled_cached_reqs
        computed = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request, start in computed.items():
            send = self._sends.get(request)
            if send is None or send.whole:
                continue
            stop = min(start + output.num_scheduled_tokens[request], send.length)
            if stop <= send.put:
                continue  # computed again after a preemption
            table = output.kv_connector_block_state.get_block_ids(request)
            orders.saves.append(self._save(send, table, stop))
            send.put = stop

    def finished(
        self, request: str, table: tuple[list[int], ...], orders: Orders
    ) -> tuple[bool, dict[str, Any] | None]:
        """Hold the blocks of a whole one; stop the transfer of any other."""
        send = self._sends.pop(request, None)
        if send is None:
            return False, None
        if not send.whole:
            orders.stops.append(Stop(send.transfer, "cancelled", "the prefill was aborted"))
            return False, None
        blocks = sum(block != NULL_BLOCK for ids in table for block in ids)
        orders.holds.append(Hold(request, send.transfer, blocks))
        return True, {"prfaas": {"transfer_id": send.transfer, "tokens": send.length}}

    def _save(self, send: _Send, table: tuple[list[int], ...], stop: int) -> Save:
        last = stop == send.length
        pairs = list(zip(self._groups, table, strict=True))
        return Save(
            send.transfer,
            send.length,
            tuple(group.rows(ids, send.put, stop, send.length) for group, ids in pairs),
            tuple(group.state_block(ids, send.length) if last else None for group, ids in pairs),
            last,
            send.receivers,
        )


def drop_last_token(request: Any) -> None:
    """Make vLLM's `request` one for all but the last token of its prompt, and for one token of output."""
    del request.prompt_token_ids[-1:]
    del request._all_token_ids[-1:]
    request.num_prompt_tokens -= 1
    request.max_tokens = 1
    # The last hash may be of a block that the dropped token completed.
    request.block_hashes.clear()
    request.update_block_hashes()
