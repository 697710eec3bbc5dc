"""The workers' side of the connector: follows each step's orders, between the cache's pages and the mover.

It knows orders, pages and transfers; it does not know requests' lives, nor vLLM's classes. On the worker's thread only.
"""

from __future__ import annotations

import logging

from prfaas.core.transfer.extent import Extent
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.layout import CacheMap
from prfaas.engine.vllm.mover import Failed, Landed, Mover, Over, Paced
from prfaas.engine.vllm.orders import Load, Orders, Report, Save
from prfaas.engine.vllm.pages import Pages
from prfaas.engine.vllm.tally import Tally

log = logging.getLogger(__name__)


class WorkerSide:
    """Of one worker."""

    def __init__(self, cache: CacheMap, pages: Pages, deals: Deals) -> None:
        self._cache, self._pages, self._deals = cache, pages, deals
        self._mover: Mover | None = None
        self._saves: list[Save] = []
        self._saved: set[str] = set()
        self._loads: list[Load] = []
        self._held: dict[str, str] = {}
        self._blocks: dict[str, int] = {}
        self._over: dict[str, None] = {}
        """Transfers that ended before they were told to be held for."""
        self._sent: set[str] = set()
        self._received: set[str] = set()
        self._failed: set[str] = set()
        self._report = Report()
        self.tally = Tally()

    @property
    def mover(self) -> Mover:
        """Where transfers live."""
        assert self._mover is not None
        return self._mover

    @mover.setter
    def mover(self, mover: Mover) -> None:
        self._mover = mover

    def blocks_held(self) -> int:
        """Blocks that wait for their transfers. Called from the mover's thread too."""
        return sum(self._blocks.copy().values())

    def begin(self, orders: Orders) -> None:
        """A step begins: tell the mover all that needs no tensors."""
        mover = self.mover
        for offer in orders.offers:
            mover.offer(offer)
        for receive in orders.receives:
            mover.receive(receive)
        for transfer in orders.discards:
            mover.discard(transfer)
        for stop in orders.stops:
            mover.stop(stop.transfer, stop.code, stop.detail)
        for pace in orders.paces:
            mover.pace(pace)
        self._poll()
        for hold in orders.holds:
            if hold.transfer in self._over:
                self._sent.add(hold.request)
            else:
                self._held[hold.transfer], self._blocks[hold.transfer] = hold.request, hold.blocks
        self._saves, self._saved, self._loads = orders.saves, set(), orders.loads

    def save_layer(self, name: str) -> None:
        """Layer `name` has computed this step's rows: they leave while the next layers compute."""
        layer = self._cache.layers.get(name)
        if layer is None or not self._saves or name in self._saved or self._pages.is_recurrent(name):
            return
        self._saved.add(name)
        for save in self._saves:
            rows = save.rows[layer.group]
            if rows is not None:
                slices = self._deals.give(save.receivers).slices
                with self._guarded(save) as put:
                    self._pages.rows_out(name, rows, slices, put)

    def save_rest(self) -> None:
        """All layers have computed: what is left, the states, and the end."""
        if not self._saves:
            return
        for name in self._cache.layers:
            self.save_layer(name)  # those that vLLM did not announce
        for save in self._saves:
            for name, layer in self._cache.layers.items():
                block = save.states[layer.group]
                if block is not None:
                    slices = self._deals.give(save.receivers).slices
                    with self._guarded(save) as put:
                        self._pages.state_out(name, block, save.length, slices, put)
        self._pages.settle()
        for save in self._saves:
            if save.last:
                self.mover.finish(save.transfer)
        self._saves = []

    def load(self) -> None:
        """Put what landed into the blocks that this step allocated."""
        for order in self._loads:
            self._received.add(order.request)
            if not order.transfer or not self._fill(order):
                self._failed.add(order.request)
        self._loads = []

    def finished(self) -> tuple[set[str], set[str], set[str]]:
        """Requests whose blocks may go, whose loads are over, and which of these failed; each once."""
        self._poll()
        found = self._sent, self._received, self._failed
        self._sent, self._received, self._failed = set(), set(), set()
        return found

    def report(self) -> Report | None:
        """What the scheduler's side must hear; None when that is nothing."""
        report, self._report = self._report, Report()
        return report or None

    def _guarded(self, save: Save) -> _Guard:
        return _Guard(self.mover, save)

    def _fill(self, order: Load) -> bool:
        landed = self.mover.take(order.transfer)
        if landed is None:
            log.error("request %s: the KV of %s is gone", order.request, order.transfer)
            return False
        try:
            for name, layer in self._cache.layers.items():
                rows, block = order.rows[layer.group], order.states[layer.group]
                if rows is not None:
                    self._pages.rows_in(name, rows, order.held, order.length, landed.parts)
                if block is not None:
                    self._pages.state_in(name, block, landed.parts)
        except Exception:
            log.exception("request %s: the KV of %s cannot be loaded", order.request, order.transfer)
            self.mover.stop(order.transfer, "load", "the KV cannot be loaded")
            return False
        self.mover.applied(order.transfer)
        return True

    def _poll(self) -> None:
        for event in self.mover.happened():
            match event:
                case Landed(transfer):
                    self._report.landed[transfer] += 1
                case Failed(transfer, why):
                    self._report.failed[transfer] = why
                case Paced():
                    self._report.paces += event.left()
                case Over(transfer, sent, outcome):
                    self.tally.count(outcome, sent)
                    if not sent:
                        continue
                    self._blocks.pop(transfer, None)
                    request = self._held.pop(transfer, None)
                    if request is not None:
                        self._sent.add(request)
                    else:
                        self._over[transfer] = None
                        while len(self._over) > _REMEMBERED:
                            del self._over[next(iter(self._over))]


_REMEMBERED = 4096


class _Guard:
    """What one save puts; an error in between ends its transfer, not vLLM."""

    def __init__(self, mover: Mover, save: Save) -> None:
        self._mover, self._save = mover, save

    def __enter__(self) -> _Guard:
        return self

    def __call__(self, to: int, extent: Extent, data: memoryview) -> None:
        self._mover.put(self._save.transfer, to, [(extent, data)])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("the KV of %s cannot leave", self._save.transfer, exc_info=error)
        self._mover.stop(self._save.transfer, "engine", "the KV cannot be read")
        return True
