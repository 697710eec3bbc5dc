"""Stored prefixes with their books: what is pinned, what may go, and room made by evicting.

It knows runs, snapshots and block numbers; it does not know requests, chains from outside or leases. Eviction is LRU.
Without state the last block of the oldest path goes first, one by one; with state the oldest snapshot goes, with the
blocks that only it needs.
"""

from __future__ import annotations

from prfaas.core.cache.blocks import FreeBlocks
from prfaas.core.cache.eviction import Ages
from prfaas.core.cache.runs import Node, join, split
from prfaas.core.cache.spec import PoolSpec


class Store:
    """Prefixes and snapshots in `capacity_blocks` blocks, less those that are `lent` to requests.

    Counters: `stored_blocks` (became prefix blocks), `evicted_blocks`. `tick` counts uses.
    """

    __slots__ = (
        "_serial",
        "_stateful",
        "ages",
        "capacity_blocks",
        "evicted_blocks",
        "free",
        "lent",
        "nodes",
        "pinned",
        "root",
        "snapshot_blocks",
        "stored_blocks",
        "tick",
    )

    def __init__(self, spec: PoolSpec, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        self.snapshot_blocks = spec.snapshot_blocks
        self.free = FreeBlocks(capacity_blocks)
        self.root = Node(None, 0, [], [], 0)
        self.root.holds = 1  # never goes
        self.ages = Ages(_snapshot_may_go if spec.stateful else _leaf_may_go)
        self.lent = self.pinned = self.nodes = self.tick = 0
        self.stored_blocks = self.evicted_blocks = 0
        self._stateful = spec.stateful
        self._serial = 0

    @property
    def room(self) -> int:
        """Blocks that are free or could be: neither lent nor pinned."""
        return self.capacity_blocks - self.lent - self.pinned

    def lend(self, count: int) -> list[int]:
        """`count` blocks that `make_room` promised, out of the store."""
        self.lent += count
        return self.free.take(count)

    def take_back(self, blocks: list[int]) -> None:
        """Lent `blocks` are free again."""
        self.lent -= len(blocks)
        self.free.give(blocks)

    def end_at(self, node: Node, depth: int) -> Node:
        """The node that ends at `depth` blocks, which is the end of `node` or inside its run."""
        if depth == node.start + len(node.ids):
            return node
        self._serial += 1
        self.nodes += 1
        return split(node, depth, self._serial)

    def grow(self, at: Node, ids: list[int], blocks: list[int]) -> Node:
        """Appends a run of blocks that were lent after `at`: to its own, when nothing parts the two; else as a child.
        The new end."""
        self.lent -= len(blocks)
        self.stored_blocks += len(blocks)
        if at.state is None and not at.children and at.pins == 0 and at is not self.root:
            at.ids += ids
            at.blocks += blocks
            return at
        self._serial += 1
        self.nodes += 1
        child = Node(at, at.stop, ids, blocks, self._serial)
        at.children[ids[0]] = child
        return child

    def pin(self, node: Node) -> None:
        """One more holder of the prefix that ends at `node`. The cost is of the nodes that nobody held."""
        if node.pins == 0 and node.state is not None:
            self.pinned += len(node.state)
        node.pins += 1
        at: Node | None = node
        while at is not None:
            at.holds += 1
            if at.holds > 1:
                break
            self.pinned += len(at.ids)
            at = at.parent

    def unpin(self, node: Node) -> None:
        """One holder less; what nobody needs any more goes, or may go from now on."""
        node.pins -= 1
        if node.pins == 0 and node.state is not None:
            self.pinned -= len(node.state)
        at: Node | None = node
        while at is not None:
            at.holds -= 1
            if at.holds:
                break
            self.pinned -= len(at.ids)
            at = at.parent
        if node.pins == 0 and node is not self.root:
            self._tidy(node)

    def _tidy(self, node: Node) -> None:
        """After `node` lost a pin, a child or its snapshot: it goes, becomes one with its only child, may be evicted
        from now on, or stays as it is."""
        root = self.root
        if self._stateful:
            if node.state is not None:
                if node.pins == 0:
                    self.ages.add(node)
                return
            while not node.children and node.holds == 0 and node is not root:
                parent = self._remove(node)
                if parent.state is not None:
                    return
                node = parent
            if len(node.children) == 1 and node.pins == 0 and node is not root:
                join(node)
                self.nodes -= 1
        elif not node.children:
            if node.holds == 0:
                self.ages.add(node)
        elif len(node.children) == 1 and node.pins == 0:
            (child,) = node.children.values()
            if child.used >= node.used:
                join(node)
                self.nodes -= 1

    def _remove(self, node: Node) -> Node:
        """Frees the run of a leaf that nobody holds; its parent."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.ids[0]]
        node.parent = None
        self.nodes -= 1
        self.evicted_blocks += len(node.blocks)
        self.free.give(node.blocks)
        return parent

    def make_room(self, blocks: int) -> bool:
        """Evicts until `blocks` are free; False, and nothing done, when so many cannot be."""
        if blocks > self.capacity_blocks - self.lent - self.pinned:
            return False
        missing = blocks - len(self.free)
        if missing > 0:
            if self._stateful:
                self._evict_snapshots(missing)
            else:
                self._evict_tails(missing)
            self.ages.sweep(self.nodes)
        return True

    def _evict_tails(self, missing: int) -> None:
        while missing > 0:
            node = self.ages.oldest()
            size = len(node.ids)
            if missing < size:
                self.free.give(node.blocks[size - missing :])
                del node.ids[size - missing :], node.blocks[size - missing :]
                self.evicted_blocks += missing
                return
            missing -= size
            parent = self._remove(node)
            if parent is self.root:
                continue
            parent.used = max(parent.used, node.used)
            self._tidy(parent)

    def _evict_snapshots(self, missing: int) -> None:
        free = self.free
        enough = len(free) + missing
        while len(free) < enough:
            node = self.ages.oldest()
            assert node.state is not None
            free.give(node.state)
            self.evicted_blocks += len(node.state)
            node.state = None
            self._tidy(node)

    def take_snapshots(self, end: Node, stops: list[int]) -> list[tuple[int, list[int]]]:
        """Snapshots at `stops` on the path of `end`, which is pinned: as many as there is room for, first come.

        Those that are there are refreshed; returned are the others, each with its stop and its block numbers. Of these
        `stops` the last one goes first.
        """
        size = self.snapshot_blocks
        missing: list[int] = []
        self.tick += len(stops)
        for rank, stop in enumerate(stops):
            at = _at(end, stop)
            if at.state is not None and at.stop == stop:
                at.used = max(at.used, self.tick - rank)
            elif stop not in missing:
                missing.append(stop)
        del missing[max(0, self.room // size) :]
        self.make_room(len(missing) * size)
        taken = []
        for stop in missing:
            at = self.end_at(_at(end, stop), stop)
            at.state = self.free.take(size)
            at.used = self.tick - stops.index(stop)
            self.stored_blocks += size
            if at.pins:
                self.pinned += size
            else:
                self.ages.add(at)
            taken.append((stop, list(at.state)))
        return taken


def _leaf_may_go(node: Node) -> bool:
    return node.parent is not None and not node.children and node.holds == 0


def _snapshot_may_go(node: Node) -> bool:
    return node.parent is not None and node.state is not None and node.pins == 0


def _at(end: Node, stop: int) -> Node:
    """The node on the path of `end` in which the block before `stop` is."""
    at = end
    while at.start >= stop:
        assert at.parent is not None
        at = at.parent
    return at
