"""The hybrid prefix-cache pool of one node or cluster: what prefixes it holds, who uses them, and what goes for room.

It knows chains of block ids, requests and block numbers; it does not know clocks, engines or links. Every block is in
one of three states: *free*; a *prefix block*, which holds one block of a stored prefix or part of a snapshot and is
shared by reference; or a *working block* of one request, which becomes a *transfer block* when the work is done and
the receiver has not acknowledged yet. Working and transfer blocks are never evicted and never counted as a hit.

What can be resumed (paper, section 6): block-level groups (full attention, MLA) resume at every block that is stored;
request-level state (recurrent state, last windows) only at exactly the length at which a snapshot was taken. The
usable prefix is the longest length at which all groups resume. Block-level groups resume at every length below one at
which they resume, so the fixed point over the groups is the last snapshot within the stored blocks.

A chain is a list of block ids: equal ids at equal positions mean equal prefixes (canonical hashes are such; so are the
`hash_ids` of a Mooncake trace). Stored prefixes are closed: no block without the one before it. In a model with state
no block is kept beyond the last snapshot that needs it, for nothing could resume there.

Eviction is LRU. Using a prefix refreshes it to its end; using a snapshot refreshes that snapshot and the blocks that
it needs, not the snapshots on the way. Without state the last block of the oldest path goes first, one by one; with
state the oldest snapshot goes with the blocks that only it needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heappop, heappush

from prfaas.core.cache.audit import audit
from prfaas.core.cache.blocks import FreeBlocks
from prfaas.core.cache.eviction import Ages
from prfaas.core.cache.runs import Node, follow, join, numbers, split
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import InvariantError, LocalError


class Grant:
    """What `begin` gave. `cached_tokens`: usable prefix, pinned; `shared_tokens`: how far the stored blocks agree with
    the chain, at least `cached_tokens`: where the request leaves what is known, and so where a snapshot would serve
    the next one; `blocks`: working blocks that were reserved."""

    __slots__ = ("blocks", "cached_tokens", "shared_tokens")

    def __init__(self, cached_tokens: int, shared_tokens: int, blocks: int) -> None:
        self.cached_tokens = cached_tokens
        self.shared_tokens = shared_tokens
        self.blocks = blocks


class Kept:
    """What became reusable. `tokens`: length of the stored prefix now; `blocks`: numbers of its last blocks, those
    that were not stored before; `states`: of each new snapshot its length in tokens and its block numbers, for who has
    bytes to put there."""

    __slots__ = ("blocks", "states", "tokens")

    def __init__(self, tokens: int, blocks: list[int], states: list[tuple[int, list[int]]]) -> None:
        self.tokens = tokens
        self.blocks = blocks
        self.states = states


class Held:
    """The blocks of one request. `prefix`: shared, in order; `state`: the snapshot that it resumes from; `own`: its
    working or transfer blocks, those for tokens first and in order, then those for its running state."""

    __slots__ = ("own", "prefix", "state")

    def __init__(self, prefix: list[int], state: list[int], own: list[int]) -> None:
        self.prefix = prefix
        self.state = state
        self.own = own


class _Job:
    """One request at work (`lease_ns` is None) or handed over. `node`: the end of the prefix that it pins; `room`:
    blocks of tokens that it may fill, the prefix included."""

    __slots__ = ("blocks", "lease_ns", "node", "room")

    def __init__(self, node: Node, blocks: list[int], room: int) -> None:
        self.node = node
        self.blocks = blocks
        self.room = room
        self.lease_ns: int | None = None


class PrefixPool:
    """`capacity_blocks` equal blocks that requests work in and prefixes stay in.

    Counters, all since the start: `asked_tokens` and `hit_tokens` of requests that began, `evicted_blocks`,
    `stored_blocks` (became prefix blocks), `refused` (no room).
    """

    def __init__(self, spec: PoolSpec, capacity_blocks: int) -> None:
        if capacity_blocks < 1:
            raise LocalError(f"capacity_blocks: got {capacity_blocks}; expected at least 1")
        self.spec = spec
        self.capacity_blocks = capacity_blocks
        self.asked_tokens = self.hit_tokens = 0
        self.evicted_blocks = self.stored_blocks = self.refused = 0
        self._free = FreeBlocks(capacity_blocks)
        self._root = Node(None, 0, [], [], 0)
        self._root.holds = 1  # never goes
        self._ages = Ages(_snapshot_may_go if spec.stateful else _leaf_may_go)
        self._jobs: dict[Hashable, _Job] = {}
        self._leases: list[tuple[int, int, Hashable]] = []
        self._working = 0
        self._pinned = 0
        self._nodes = 0
        self._serial = 0
        self._tick = 0

    @property
    def used_blocks(self) -> int:
        """Blocks that are not free."""
        return self.capacity_blocks - len(self._free)

    @property
    def prefix_blocks(self) -> int:
        """Blocks of stored prefixes and snapshots."""
        return self.used_blocks - self._working

    @property
    def working_blocks(self) -> int:
        """Working and transfer blocks."""
        return self._working

    @property
    def room_blocks(self) -> int:
        """Blocks that a request could get now: free, or evictable."""
        return self.capacity_blocks - self._working - self._pinned

    def can_ever(self, tokens: int) -> bool:
        """Whether a request of `tokens` tokens would fit an empty pool."""
        return -(-tokens // self.spec.block_tokens) + self.spec.snapshot_blocks <= self.capacity_blocks

    def usable(self, chain: Sequence[int], tokens: int) -> int:
        """Longest length in tokens, at most `tokens`, at which every group can resume. Changes nothing."""
        size = self.spec.block_tokens
        _, depth, resume = follow(self._root, chain, min(len(chain), tokens // size))
        return (resume.stop if self.spec.stateful else depth) * size

    def begin(self, request: Hashable, chain: Sequence[int], tokens: int) -> Grant | None:
        """Pins the usable prefix of `chain` and reserves working blocks for the rest of `tokens` tokens (the chain's,
        and those that are still to be made) and, where the model has state, for the running state.

        None when there is no room now: nothing has changed. Raises InvariantError when `request` has begun already.
        """
        if request in self._jobs:
            raise InvariantError(f"{request} has begun already")
        spec = self.spec
        size = spec.block_tokens
        node, depth, resume = follow(self._root, chain, min(len(chain), tokens // size))
        if spec.stateful:
            at = resume
            cached = at.start + len(at.ids)
        else:
            at = node if depth == node.start + len(node.ids) else self._split(node, depth)
            cached = depth
        room = -(-tokens // size)
        need = room - cached + spec.snapshot_blocks
        self._pin(at)
        if not self._make_room(need):
            self._unpin(at)
            self.refused += 1
            return None
        self._tick += 1
        at.used = self._tick
        self._working += need
        self._jobs[request] = _Job(at, self._free.take(need), room)
        self.asked_tokens += tokens
        self.hit_tokens += cached * size
        return Grant(cached * size, depth * size, need)

    def end(self, request: Hashable, chain: Sequence[int], tokens: int, snapshots: Iterable[int] = ()) -> Kept:
        """The work of `request` is done: its full blocks become prefix blocks, snapshots are kept at the lengths
        `snapshots` (tokens; as many as there is room for, first come), what is left is free.

        `chain`: ids of full blocks, from the first; `tokens`: length that was computed. Lengths beyond either, or
        within the prefix that was resumed, are passed over. Raises LocalError for a length that is no multiple of
        `spec.snapshot_tokens`, or for more tokens than `begin` reserved.
        """
        job = self._working_job(request)
        stops = self._stops(snapshots)
        kept = self._keep(job, chain, tokens, stops, job.node.stop)
        del self._jobs[request]
        self._release(job)
        return kept

    def ship(
        self, request: Hashable, chain: Sequence[int], tokens: int, snapshots: Iterable[int], lease_ns: int
    ) -> Kept:
        """As `end`, but a receiver elsewhere still reads: the prefix stays pinned, and what is not in it (the tail,
        the state) stays as transfer blocks, until `acknowledge`, or until `expire` at `lease_ns` or later."""
        job = self._working_job(request)
        stops = self._stops(snapshots)
        kept = self._keep(job, chain, tokens, stops, job.node.stop)
        job.lease_ns = lease_ns
        self._serial += 1
        heappush(self._leases, (lease_ns, self._serial, request))
        return kept

    def acknowledge(self, request: Hashable) -> bool:
        """The receiver of `request` has everything: its transfer blocks are free. False when it holds none (any
        more)."""
        job = self._jobs.get(request)
        if job is None or job.lease_ns is None:
            return False
        self.drop(request)
        return True

    def expire(self, now_ns: int) -> list[Hashable]:
        """Frees the transfer blocks of every lease that has ended by `now_ns`; whose, by end of lease."""
        ended: list[Hashable] = []
        while self._leases and self._leases[0][0] <= now_ns:
            lease_ns, _, request = heappop(self._leases)
            job = self._jobs.get(request)
            if job is not None and job.lease_ns == lease_ns:
                self.drop(request)
                ended.append(request)
        return ended

    def drop(self, request: Hashable) -> None:
        """`request` is over, whatever it was at: its blocks are free, its pin is gone. Nothing where there is no such
        one."""
        job = self._jobs.pop(request, None)
        if job is not None:
            self._release(job)

    def insert(self, chain: Sequence[int], tokens: int, snapshots: Iterable[int] = ()) -> Kept:
        """Stores a prefix that came from elsewhere: as much of it, from its start, as there is room for."""
        stops = self._stops(snapshots)
        size = self.spec.block_tokens
        limit = min(len(chain), tokens // size)
        if self.spec.stateful:
            limit = min(limit, max(stops, default=0))
        node, depth, _ = follow(self._root, chain, limit)
        at = node if depth == node.stop else self._split(node, depth)
        self._pin(at)
        limit = min(limit, depth + self.room_blocks)
        self._make_room(limit - depth)
        self._working += limit - depth
        job = _Job(at, self._free.take(limit - depth), limit)
        kept = self._keep(job, chain, limit * size, [stop for stop in stops if stop <= limit], 0)
        self._release(job)
        return kept

    def held(self, request: Hashable) -> Held:
        """The blocks that `request` may read or write. Raises LocalError when it holds none."""
        job = self._jobs.get(request)
        if job is None:
            raise LocalError(f"{request} holds no blocks")
        return Held(numbers(job.node), list(job.node.state or ()), list(job.blocks))

    def snapshots(self, chain: Sequence[int], tokens: int) -> list[int]:
        """Lengths in tokens, ascending, at which a snapshot of `chain` is stored, at most `tokens`."""
        size = self.spec.block_tokens
        at: Node | None = follow(self._root, chain, min(len(chain), tokens // size))[2]
        found = []
        while at is not None:
            if at.state is not None:
                found.append(at.stop * size)
            at = at.parent
        return found[::-1]

    # Requests.

    def _working_job(self, request: Hashable) -> _Job:
        job = self._jobs.get(request)
        if job is None or job.lease_ns is not None:
            raise LocalError(f"{request} is not at work")
        return job

    def _stops(self, snapshots: Iterable[int]) -> list[int]:
        """Lengths in tokens as blocks; none for a model without state."""
        if not self.spec.stateful:
            return []
        size, every = self.spec.block_tokens, self.spec.snapshot_tokens
        stops = []
        for length in snapshots:
            if length % every:
                raise LocalError(f"snapshot: got length {length}; expected a multiple of {every}")
            stops.append(length // size)
        return stops

    def _keep(self, job: _Job, chain: Sequence[int], tokens: int, stops: list[int], above: int) -> Kept:
        """Makes a prefix of the job's blocks and moves its pin to the end of it; `stops`: where snapshots are wanted,
        those above `above` blocks. The job keeps the blocks that are left."""
        spec = self.spec
        first = job.node.stop
        blocks = job.blocks
        if tokens > job.room * spec.block_tokens:
            raise LocalError(
                f"tokens: got {tokens}; expected at most {job.room * spec.block_tokens}, what was reserved"
            )
        limit = min(len(chain), tokens // spec.block_tokens)
        if spec.stateful:
            stops = [stop for stop in stops if above < stop <= limit]
            limit = max(stops, default=0)
        limit = max(limit, first)
        self._tick += 1
        node, depth, _ = follow(job.node, chain, limit)
        at = node if depth == node.stop else self._split(node, depth)
        new: list[int] = []
        if depth < limit:
            new = blocks[depth - first : limit - first]
            at = self._grow(at, list(chain[depth:limit]), new)
            self.stored_blocks += len(new)
            self._working -= len(new)
        if depth > first:  # somebody else stored these meanwhile
            self._working -= depth - first
            self._free.give(blocks[: depth - first])
        del blocks[: limit - first]
        if not spec.stateful:
            at.used = self._tick
        self._pin(at)
        job.node, before = at, job.node
        self._unpin(before)
        states = self._take_snapshots(at, stops) if stops else []
        return Kept(limit * spec.block_tokens, new, states)

    def _release(self, job: _Job) -> None:
        self._working -= len(job.blocks)
        self._free.give(job.blocks)
        self._unpin(job.node)

    def _take_snapshots(self, end: Node, stops: list[int]) -> list[tuple[int, list[int]]]:
        """Snapshots at `stops` on the path of `end`, which is pinned: as many as there is room for, first come."""
        size = self.spec.snapshot_blocks
        missing: list[int] = []
        for stop in stops:
            at = _at(end, stop)
            if at.stop == stop and at.state is not None:
                at.used = self._tick
            elif stop not in missing:
                missing.append(stop)
        del missing[max(0, self.room_blocks // size) :]
        self._make_room(len(missing) * size)
        taken = []
        for stop in missing:
            at = _at(end, stop)
            if at.stop != stop:
                at = self._split(at, stop)
            at.state = self._free.take(size)
            at.used = self._tick
            self.stored_blocks += size
            if at.pins:
                self._pinned += size
            else:
                self._ages.add(at)
            taken.append((stop * self.spec.block_tokens, list(at.state)))
        return taken

    # The tree, with its books.

    def _split(self, node: Node, depth: int) -> Node:
        self._serial += 1
        self._nodes += 1
        return split(node, depth, self._serial)

    def _grow(self, at: Node, ids: list[int], blocks: list[int]) -> Node:
        """Appends a run after `at`: to its own, when nothing parts the two; else as a child. The new end."""
        if at.state is None and not at.children and at.pins == 0 and at is not self._root:
            at.ids += ids
            at.blocks += blocks
            return at
        self._serial += 1
        self._nodes += 1
        child = Node(at, at.stop, ids, blocks, self._serial)
        at.children[ids[0]] = child
        return child

    def _pin(self, node: Node) -> None:
        """One more holder of the prefix that ends at `node`. The cost is of the nodes that nobody held."""
        if node.pins == 0 and node.state is not None:
            self._pinned += len(node.state)
        node.pins += 1
        at: Node | None = node
        while at is not None:
            at.holds += 1
            if at.holds > 1:
                break
            self._pinned += len(at.ids)
            at = at.parent

    def _unpin(self, node: Node) -> None:
        node.pins -= 1
        if node.pins == 0 and node.state is not None:
            self._pinned -= len(node.state)
        at: Node | None = node
        while at is not None:
            at.holds -= 1
            if at.holds:
                break
            self._pinned -= len(at.ids)
            at = at.parent
        if node.pins == 0 and node is not self._root:
            self._tidy(node)

    def _tidy(self, node: Node) -> None:
        """After `node` lost a pin, a child or its snapshot: it goes, becomes one with its only child, may be evicted
        from now on, or stays as it is."""
        root = self._root
        if self.spec.stateful:
            if node.state is not None:
                if node.pins == 0:
                    self._ages.add(node)
                return
            while not node.children and node.holds == 0 and node is not root:
                parent = self._remove(node)
                if parent.state is not None:
                    return
                node = parent
            if len(node.children) == 1 and node.pins == 0 and node is not root:
                join(node)
                self._nodes -= 1
        elif not node.children:
            if node.holds == 0:
                self._ages.add(node)
        elif len(node.children) == 1 and node.pins == 0:
            (child,) = node.children.values()
            if child.used >= node.used:
                join(node)
                self._nodes -= 1

    def _remove(self, node: Node) -> Node:
        """Frees the run of a leaf that nobody holds; its parent."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.ids[0]]
        node.parent = None
        self._nodes -= 1
        self.evicted_blocks += len(node.blocks)
        self._free.give(node.blocks)
        return parent

    # Eviction.

    def _make_room(self, blocks: int) -> bool:
        """Evicts until `blocks` are free; False, and nothing done, when so many cannot be."""
        if blocks > self.capacity_blocks - self._working - self._pinned:
            return False
        missing = blocks - len(self._free)
        if missing > 0:
            if self.spec.stateful:
                self._evict_snapshots(missing)
            else:
                self._evict_tails(missing)
            self._ages.sweep(self._nodes)
        return True

    def _evict_tails(self, missing: int) -> None:
        while missing > 0:
            node = self._ages.oldest()
            size = len(node.ids)
            if missing < size:
                self._free.give(node.blocks[size - missing :])
                del node.ids[size - missing :], node.blocks[size - missing :]
                self.evicted_blocks += missing
                return
            missing -= size
            parent = self._remove(node)
            if parent is self._root:
                continue
            parent.used = max(parent.used, node.used)
            self._tidy(parent)

    def _evict_snapshots(self, missing: int) -> None:
        free = self._free
        enough = len(free) + missing
        while len(free) < enough:
            node = self._ages.oldest()
            assert node.state is not None
            free.give(node.state)
            self.evicted_blocks += len(node.state)
            node.state = None
            self._tidy(node)

    def validate(self) -> None:
        """Raises InvariantError when the books do not balance. The cost is of the whole pool."""
        audit(self)


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
