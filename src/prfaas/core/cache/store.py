"""Stored prefixes with their books: what is pinned, what may go, and room made by evicting.

It knows runs, snapshots and block numbers; it does not know requests, chains from outside or leases. Eviction is LRU.
Without state the last block of the oldest path goes first, one by one; with state the oldest snapshot goes, with the
blocks that only it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prfaas.core.cache.blocks import FreeBlocks
from prfaas.core.cache.eviction import Ages
from prfaas.core.cache.runs import Node, join, split
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import InvariantError

COLD = 1 << 62
"""What a snapshot's age is set back by, so that it goes before all that are not cold; among themselves those are
LRU."""


class Store:
    """Prefixes and snapshots in `capacity_blocks` blocks, less those that are `lent` to requests.

    Counters: `stored_blocks` (became prefix blocks), `evicted_blocks`. `tick` counts uses. `moves`, unless None: every
    block number that was stored, and ~number of every one that was evicted, in order. `leaves`, unless None, is told of
    a node before its snapshot, or its last blocks, are evicted.
    """

    __slots__ = (
        "_serial",
        "ages",
        "capacity_blocks",
        "evicted_blocks",
        "free",
        "leaves",
        "lent",
        "moves",
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
        self.moves: list[int] | None = None
        self.leaves: Callable[[Node], None] | None = None
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
        if depth == node.stop:
            return node
        self._serial += 1
        self.nodes += 1
        return split(node, depth, self._serial)

    def grow(self, at: Node, ids: list[int], blocks: list[int]) -> Node:
        """Appends a run of blocks that were lent after `at`: to its own, when nothing parts the two; else as a child.
        The new end."""
        self.lent -= len(blocks)
        self.stored_blocks += len(blocks)
        if self.moves is not None:
            self.moves += blocks
        if at.state is None and not at.children and at.pins == 0 and at is not self.root:
            at.ids += ids
            at.blocks += blocks
            at.stop += len(ids)
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
        at = node
        while True:
            at.holds += 1
            if at.holds > 1 or at.parent is None:
                break
            at = at.parent
        self.pinned += node.stop - at.stop

    def unpin(self, node: Node) -> None:
        """One holder less; what nobody needs any more goes, or may go from now on."""
        node.pins -= 1
        if node.pins == 0 and node.state is not None:
            self.pinned -= len(node.state)
        at = node
        while True:
            at.holds -= 1
            if at.holds or at.parent is None:
                break
            at = at.parent
        self.pinned -= node.stop - at.stop
        if node.pins == 0 and node is not self.root:
            self._tidy(node)

    def _tidy(self, node: Node) -> None:
        """After `node` lost a pin, a child or its snapshot: it goes, becomes one with its only child, may be evicted
        from now on, or stays as it is."""
        root = self.root
        if self.snapshot_blocks:
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
        self._evict(node.blocks)
        return parent

    def _evict(self, blocks: list[int]) -> None:
        self.evicted_blocks += len(blocks)
        self.free.give(blocks)
        if self.moves is not None:
            self.moves += [~number for number in blocks]

    def make_room(self, blocks: int) -> bool:
        """Evicts until `blocks` are free; False, and nothing done, when so many cannot be."""
        if blocks > self.capacity_blocks - self.lent - self.pinned:
            return False
        missing = blocks - self.free.count
        if missing > 0:
            if self.snapshot_blocks:
                self._evict_snapshots(missing)
            else:
                self._evict_tails(missing)
            self.ages.sweep(self.nodes)
        return True

    def _evict_tails(self, missing: int) -> None:
        while missing > 0:
            node = self.ages.oldest()
            if node is None:
                raise InvariantError("no block may go, but room was promised")
            if self.leaves is not None:
                self.leaves(node)
            size = len(node.ids)
            if missing < size:
                self._evict(node.blocks[size - missing :])
                del node.ids[size - missing :], node.blocks[size - missing :]
                node.stop -= missing
                return
            missing -= size
            parent = self._remove(node)
            if parent is self.root:
                continue
            parent.used = max(parent.used, node.used)
            self._tidy(parent)

    def _evict_snapshots(self, missing: int) -> None:
        enough = self.free.count + missing
        while self.free.count < enough:
            node = self.ages.oldest()
            if node is None:
                raise InvariantError("no snapshot may go, but room was promised")
            self._evict_snapshot(node)

    def _evict_snapshot(self, node: Node) -> None:
        assert node.state is not None
        if self.leaves is not None:
            self.leaves(node)
        self._evict(node.state)
        node.state = None
        self._tidy(node)

    def supersede(self, node: Node) -> None:
        """Somebody resumed at `node` and left a snapshot beyond it: this one and those before it go before all that are
        not cold, until they are used again; up to one that is cold already, or where paths part. So a path has few
        snapshots that are not cold, however long it grows."""
        at = node
        while at.parent is not None and len(at.children) == 1:
            if at.state is not None and at.pins == 0:
                if at.used < 0:
                    break
                at.used -= COLD
                self.ages.add(at)
            at = at.parent

    def take_snapshots(self, end: Node, stops: Sequence[int], spare: Sequence[int]) -> list[tuple[int, list[int]]]:
        """Snapshots at `stops` on the path of `end`, which is pinned: as many as there is room for, first come; then
        cold ones at `spare`, as many as need only free blocks and those of cold ones that were there before.

        Those that are there are refreshed; returned are the others, each with its stop and its block numbers. Of the
        `stops` the last one goes first.
        """
        size = self.snapshot_blocks
        self.tick += len(stops) + len(spare)
        age = self.tick
        missing: dict[int, int] = {}
        for stop in stops:
            at = _at(end, stop)
            if not at.state or at.stop != stop:
                missing.setdefault(stop, age)
            elif at.used < age:
                at.used = age
            age -= 1
        if self.room < len(missing) * size:
            missing = dict(list(missing.items())[: max(0, self.room // size)])
        self.make_room(len(missing) * size)
        taken = [(stop, self._take_snapshot(end, stop, at_age)) for stop, at_age in missing.items()]
        for stop in spare:
            at = _at(end, stop)
            age -= 1
            if at.state and at.stop == stop:
                continue
            if not self._make_spare_room(size, age - COLD):
                break
            taken.append((stop, self._take_snapshot(end, stop, age - COLD)))
        return taken

    def mark(self, node: Node) -> None:
        """The rows up to the end of `node`, which is pinned, stay although nothing can resume there: by their age, as
        if a snapshot of no blocks, used just now, kept them. A snapshot that is there has an age of its own."""
        if self.snapshot_blocks and not node.state and node is not self.root:
            node.state = []
            node.used = self.tick

    def _take_snapshot(self, end: Node, stop: int, age: int) -> list[int]:
        at = self.end_at(_at(end, stop), stop)
        at.state = state = self.free.take(self.snapshot_blocks)
        at.used = age
        self.stored_blocks += self.snapshot_blocks
        if self.moves is not None:
            self.moves += state
        if at.pins:
            self.pinned += self.snapshot_blocks
        else:
            self.ages.add(at)
        return state

    def _make_spare_room(self, blocks: int, age: int) -> bool:
        """Evicts cold snapshots older than `age` until `blocks` are free; False when there are no more. (One that was
        just taken is more wanted than the next, and its room must not be given away under it.)"""
        while self.free.count < blocks:
            node = self.ages.oldest()
            if node is None or node.used >= age:
                return False
            self._evict_snapshot(node)
        return True


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
