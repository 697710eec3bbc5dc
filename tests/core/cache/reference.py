"""Plain pools that do the same one request at a time: a dictionary of prefixes in order of use, block by block."""

from __future__ import annotations

from collections import OrderedDict

Prefix = tuple[int, ...]


class PlainBlocks:
    """For a model without state. Each use touches the deepest block first, so that it is the first to go."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.order: OrderedDict[Prefix, None] = OrderedDict()

    @property
    def used(self) -> int:
        return len(self.order)

    def serve(self, chain: list[int], blocks: int, stops: list[int]) -> int | None:
        """Blocks that hit, of a request of `blocks` blocks with the full blocks `chain`; None: no room."""
        hit = 0
        while hit < len(chain) and tuple(chain[: hit + 1]) in self.order:
            hit += 1
        if blocks > self.capacity:
            return None
        self._touch(chain, hit)
        while len(self.order) > self.capacity - (blocks - hit):
            self.order.popitem(last=False)
        self._touch(chain, len(chain))
        return hit

    def _touch(self, chain: list[int], count: int) -> None:
        for end in range(count, 0, -1):
            self.order[tuple(chain[:end])] = None
            self.order.move_to_end(tuple(chain[:end]))


class PlainSnapshots:
    """For a model with state: a block is there as long as a snapshot needs it."""

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity = capacity
        self.size = size
        self.order: OrderedDict[Prefix, None] = OrderedDict()

    @property
    def used(self) -> int:
        return self._blocks(()) + len(self.order) * self.size

    def _blocks(self, also: Prefix) -> int:
        return len({prefix[:end] for prefix in [*self.order, also] for end in range(1, len(prefix) + 1)})

    def serve(self, chain: list[int], blocks: int, stops: list[int]) -> int | None:
        hit = max((end for end in range(1, len(chain) + 1) if tuple(chain[:end]) in self.order), default=0)
        resumed = tuple(chain[:hit])
        if blocks + self.size * (2 if hit else 1) > self.capacity:
            return None
        if hit:
            self.order.move_to_end(resumed)
        self._evict(resumed, blocks - hit + self.size, keep=resumed)
        stops = [stop for stop in stops if hit < stop <= len(chain)]
        end = tuple(chain[: max(stops, default=hit)])
        there = end in self.order
        for stop in reversed(stops):
            if tuple(chain[:stop]) in self.order:
                self.order.move_to_end(tuple(chain[:stop]))
        missing = [stop for stop in dict.fromkeys(stops) if tuple(chain[:stop]) not in self.order]
        missing = missing[: (self.capacity - len(end) - there * self.size) // self.size]
        self._evict(end, len(missing) * self.size, keep=end)
        for stop in missing:
            self.order[tuple(chain[:stop])] = None
        for stop in reversed(stops):
            if tuple(chain[:stop]) in self.order:
                self.order.move_to_end(tuple(chain[:stop]))
        return hit

    def _evict(self, path: Prefix, need: int, keep: Prefix) -> None:
        while self.capacity - self._blocks(path) - len(self.order) * self.size < need:
            del self.order[next(prefix for prefix in self.order if prefix != keep)]
