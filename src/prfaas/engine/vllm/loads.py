"""Decode legs in the scheduler: KV arrives while the request waits, and takes blocks only when all of it is here.

It knows requests, prefixes and block tables; it does not know bytes. vLLM asks for each waiting request in each step:
the answer is "not yet" until the workers have said that all landed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from prfaas.engine.vllm.groups import Group
from prfaas.engine.vllm.orders import Load, Orders, Receive, Report, Stop
from prfaas.wire.control import TransferParams

log = logging.getLogger(__name__)


class _State(Enum):
    NEW = auto()
    COMING = auto()
    LANDED = auto()
    FAILED = auto()
    LOADING = auto()
    """Blocks are allocated, the workers load."""
    OVER = auto()
    """Loaded, failed, or not needed: vLLM computes what it does not have."""


@dataclass(slots=True)
class _Load:
    request: Any
    params: TransferParams
    length: int
    deadline_ns: int
    state: _State = _State.NEW
    held: int = 0
    local: int = 0
    landed: int = 0

    @property
    def transfer(self) -> str:
        return self.params.transfer_id


class Loads:
    """By request. A failed load ends its request, unless the prompt is shorter than `recompute_below`: then vLLM
    computes it."""

    def __init__(
        self,
        groups: tuple[Group, ...],
        workers: int,
        recompute_below: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._groups, self._workers, self._recompute_below, self._clock = groups, workers, recompute_below, clock
        self._loads: dict[str, _Load] = {}
        self._by_transfer: dict[str, _Load] = {}
        self._refused: set[str] = set()

    def refuse(self, request: str) -> None:
        """`request` is to fail."""
        self._refused.add(request)

    def begin(self, request: Any, params: TransferParams, orders: Orders) -> None:
        """KV of all but the last token is coming."""
        if params.transfer_id in self._by_transfer:
            log.error("request %s refused: transfer %s is in hand already", request.request_id, params.transfer_id)
            self.refuse(request.request_id)
            return
        deadline_ns = self._clock() + params.deadline_ms * 10**6 if params.deadline_ms else 0
        load = _Load(request, params, request.num_prompt_tokens - 1, deadline_ns)
        self._loads[request.request_id] = self._by_transfer[params.transfer_id] = load
        if request.skip_reading_prefix_cache:  # vLLM would not load it
            self._receive(load, 0, orders)
            self._discard(load, orders)

    def begin_rest(self, local_hit: Callable[[Any], int], orders: Orders) -> None:
        """Dial for those that vLLM has not asked for yet: a full batch must not keep KV from landing."""
        for load in self._loads.values():
            if load.state is _State.NEW:
                self._receive(load, min(local_hit(load.request), load.length), orders)

    def matched(self, request: Any, local: int, orders: Orders) -> tuple[int | None, bool]:
        """How many tokens beyond `local` can be loaded: None while they are coming."""
        if request.request_id in self._refused:
            return 1, True  # vLLM fails a request only in the course of a load
        load = self._loads.get(request.request_id)
        if load is None:
            return 0, False
        if load.state is _State.NEW:
            self._receive(load, min(local, load.length), orders)
        if load.state is _State.LANDED and local < load.held:
            log.warning("%s: of a prefix of %d tokens, %d are left", load.transfer, load.held, local)
            self._fail(load, orders)
        if load.state is _State.FAILED:
            if load.length + 1 < self._recompute_below:
                load.state = _State.OVER
                return 0, False
            return 1, True
        if load.state in (_State.COMING, _State.LANDED) and local >= load.length:
            self._discard(load, orders)
        if load.state is _State.LANDED:
            load.local = local
            return load.length - local, True
        return (None if load.state is _State.COMING else 0), False

    def allocated(
        self, request: str, table: Callable[[], tuple[list[int], ...]], external: int, orders: Orders
    ) -> set[int]:
        """Blocks are there: have them filled, or the load fail. Blocks that must not be found by their hash."""
        if request in self._refused:
            if external:
                self._refused.discard(request)
                orders.loads.append(Load(request))
            return set()
        load = self._loads.get(request)
        if load is None:
            return set()
        if load.state is _State.FAILED and external:
            orders.loads.append(Load(request))
            load.state = _State.OVER
        elif load.state is _State.LANDED and external:
            orders.loads.append(self._load(load, table()))
            load.state = _State.LOADING
        elif load.state is _State.LANDED:
            self._discard(load, orders)  # vLLM, or another connector, knew better
        elif load.state is _State.LOADING and not external:
            load.state = _State.OVER
            pairs = zip(self._groups, table(), strict=True)
            return {block for group, ids in pairs if (block := group.torn_block(ids, load.local, load.length))}
        return set()

    @property
    def only_coming(self) -> bool:
        """Whether KV is on its way, and nothing can be done but wait."""
        waits = False
        for load in self._loads.values():
            if load.state is _State.COMING:
                waits = True
            elif load.state is not _State.OVER:
                return False
        return waits and not self._refused

    def heard(self, report: Report, orders: Orders) -> None:
        """What the workers say of transfers."""
        for transfer, count in report.landed.items():
            load = self._by_transfer.get(transfer)
            if load is not None and load.state is _State.COMING:
                load.landed += count
                if load.landed >= self._workers:
                    load.state = _State.LANDED
        for transfer, why in report.failed.items():
            load = self._by_transfer.get(transfer)
            if load is not None and load.state in (_State.COMING, _State.LANDED):
                log.error("request %s: the KV of %s did not come: %s", load.request.request_id, transfer, why)
                self._fail(load, orders)

    def finished(self, request: str, orders: Orders) -> None:
        """The request is over, in whatever state."""
        self._refused.discard(request)
        load = self._loads.pop(request, None)
        if load is None:
            return
        self._by_transfer.pop(load.transfer, None)
        if load.state in (_State.COMING, _State.LANDED):
            orders.stops.append(Stop(load.transfer, "cancelled", "the request was aborted"))

    def _receive(self, load: _Load, held: int, orders: Orders) -> None:
        left_ms = max(1, (load.deadline_ns - self._clock()) // 10**6) if load.deadline_ns else 0
        orders.receives.append(Receive(load.params, load.length, held, left_ms))
        load.held, load.state = held, _State.COMING

    def _discard(self, load: _Load, orders: Orders) -> None:
        """All is here already; the sender must hear that nothing is wrong."""
        orders.discards.append(load.transfer)
        load.state = _State.OVER

    def _fail(self, load: _Load, orders: Orders) -> None:
        orders.stops.append(Stop(load.transfer, "load", "the KV cannot be loaded"))
        load.state = _State.FAILED

    def _load(self, load: _Load, table: tuple[list[int], ...]) -> Load:
        pairs = list(zip(self._groups, table, strict=True))
        return Load(
            load.request.request_id,
            load.transfer,
            load.length,
            load.held,
            tuple(group.rows(ids, load.local, load.length, load.length) for group, ids in pairs),
            tuple(group.state_block(ids, load.length) for group, ids in pairs),
        )
