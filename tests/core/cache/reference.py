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

    def serve(self, chain: list[int], blocks: int, stops: list[int], spare: list[int]) -> int | None:
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
    """For a model with state: a block is there as long as a snapshot needs it. `ages`: of each snapshot when it was
    used last; cold ones, which go first, are below zero."""

    def __init__(self, capacity: int, size: int, supersede: bool) -> None:
        self.capacity = capacity
        self.size = size
        self.supersede = supersede
        self.ages: dict[Prefix, float] = {}
        self.tick = 0

    @property
    def used(self) -> int:
        return self.capacity - self._free(())

    def _free(self, also: Prefix) -> int:
        blocks = {prefix[:end] for prefix in [*self.ages, also] for end in range(1, len(prefix) + 1)}
        return self.capacity - len(blocks) - len(self.ages) * self.size

    def serve(self, chain: list[int], blocks: int, stops: list[int], spare: list[int]) -> int | None:
        """Blocks that hit; None: no room."""
        hit = max((end for end in range(1, len(chain) + 1) if tuple(chain[:end]) in self.ages), default=0)
        if blocks + 2 * self.size > self.capacity:  # no room for the snapshot beside the request
            hit = 0
        resumed = tuple(chain[:hit])
        if blocks + self.size > self.capacity:
            return None
        self.tick += 100
        if hit:
            self.ages[resumed] = self.tick
        self._evict(resumed, blocks - hit + self.size)
        self.tick += 100
        wanted = {tuple(chain[:stop]): self.tick - rank for rank, stop in reversed([*enumerate(stops)])}
        cold = {tuple(chain[:stop]): self.tick - 1e9 - rank for rank, stop in reversed([*enumerate(spare)])}
        wanted, cold = ({k: v for k, v in some.items() if hit < len(k)} for some in (wanted, cold))
        end = max([resumed, *wanted, *cold], key=len)
        pinned = self.size if end in self.ages else 0
        missing = sorted((k for k in wanted if k not in self.ages), key=lambda k: -wanted[k])
        missing = missing[: (self.capacity - len(end) - pinned) // self.size]
        self.ages |= {k: max(self.ages[k], wanted[k]) for k in wanted if k in self.ages}
        self._evict(end, len(missing) * self.size)
        self.ages |= {k: wanted[k] for k in missing}
        for place in sorted((k for k in cold), key=lambda k: -cold[k]):
            if place in self.ages:
                continue
            older = cold[place]
            while self._free(end) < self.size and (oldest := self._oldest(end)) and self.ages[oldest] < older:
                del self.ages[oldest]
            if self._free(end) < self.size:
                break
            self.ages[place] = cold[place]
        if self.supersede and end != resumed and resumed in self.ages:
            self._supersede(resumed, end)
        return hit

    def _supersede(self, resumed: Prefix, end: Prefix) -> None:
        for length in range(len(resumed), 0, -1):
            at = resumed[:length]
            ways = {prefix[length] for prefix in [*self.ages, end] if len(prefix) > length and prefix[:length] == at}
            if len(ways) > 1 or self.ages.get(at, 0) < 0:
                return
            if at in self.ages:
                self.ages[at] -= 1e9

    def _oldest(self, keep: Prefix) -> Prefix:
        return min((prefix for prefix in self.ages if prefix != keep), key=self.ages.__getitem__, default=())

    def _evict(self, keep: Prefix, need: int) -> None:
        while self._free(keep) < need:
            del self.ages[self._oldest(keep)]
