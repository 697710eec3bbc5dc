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
no block is kept beyond the last snapshot that needs it, for nothing could resume there; unless somebody wants *rows*:
who receives the state from elsewhere need not receive the rows of block-level groups that it has.

Eviction is LRU. Using a prefix refreshes it to its end; using a snapshot refreshes that snapshot and the blocks that
it needs, not the snapshots on the way. Without state the last block of the oldest path goes first, one by one; with
state the oldest snapshot goes with the blocks that only it needs.

Over 400 lines: most are what callers must know, and every method moves blocks between the same three states.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush

from prfaas.core.cache.audit import audit
from prfaas.core.cache.finder import Finder
from prfaas.core.cache.grants import Grant, Held, Kept
from prfaas.core.cache.runs import Node, follow, numbers
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.store import Store
from prfaas.core.errors import InvariantError, LocalError

SPARE = 64
"""Leases that are over and let be, so that sweeping them out is rare."""


class _Job:
    """One request at work, or handed over (`handed_over` is then its number among those). `node`: the end of the prefix
    that it pins; `room`: blocks of tokens that it may fill, the prefix included."""

    __slots__ = ("blocks", "handed_over", "node", "room")

    def __init__(self, node: Node, blocks: list[int], room: int) -> None:
        self.node = node
        self.blocks = blocks
        self.room = room
        self.handed_over = 0


class PrefixPool:
    """`capacity_blocks` equal blocks that requests work in and prefixes stay in.

    `supersede`: a snapshot from which a request resumed, and beyond which it left one, is cold (goes before all others)
    until it is used again, as are those before it, unless other prefixes go on from there: a conversation resumes at
    its end, and a long one must not fill the pool.

    `tells`: `changes` says which blocks hold a prefix, for who keeps bytes by block number.

    Counters since the start: `asked_tokens` and `hit_tokens` of requests that began, `refused` (no room).
    """

    def __init__(self, spec: PoolSpec, capacity_blocks: int, *, supersede: bool = True, tells: bool = False) -> None:
        if capacity_blocks < 1:
            raise LocalError(f"capacity_blocks: got {capacity_blocks}; expected at least 1")
        self.spec = spec
        self.supersede = supersede
        self.asked_tokens = self.hit_tokens = self.refused = 0
        self._store = Store(spec, capacity_blocks)
        self._store.moves = [] if tells else None
        self._jobs: dict[Hashable, _Job] = {}
        self._leases: list[tuple[int, int, Hashable]] = []
        self._handed_over = 0
        self._stateful = spec.snapshot_blocks > 0
        self._finder = Finder(self._store.root)

    @property
    def capacity_blocks(self) -> int:
        """All blocks."""
        return self._store.capacity_blocks

    @property
    def used_blocks(self) -> int:
        """Blocks that are not free."""
        return self._store.capacity_blocks - self._store.free.count

    @property
    def working_blocks(self) -> int:
        """Working and transfer blocks."""
        return self._store.lent

    @property
    def prefix_blocks(self) -> int:
        """Blocks of stored prefixes and snapshots."""
        return self.used_blocks - self._store.lent

    @property
    def room_blocks(self) -> int:
        """Blocks that a request could get now: free, or evictable."""
        return self._store.room

    @property
    def stored_blocks(self) -> int:
        """Blocks that became prefix blocks since the start."""
        return self._store.stored_blocks

    @property
    def evicted_blocks(self) -> int:
        """Prefix blocks that became free since the start."""
        return self._store.evicted_blocks

    @property
    def nodes(self) -> int:
        """Runs in the tree of what is stored: what its memory grows with, beside blocks."""
        return self._store.nodes

    def can_ever(self, tokens: int) -> bool:
        """Whether a request of `tokens` tokens would fit an empty pool."""
        return -(-tokens // self.spec.block_tokens) + self.spec.snapshot_blocks <= self.capacity_blocks

    def usable(self, chain: Sequence[int], tokens: int) -> int:
        """Longest length in tokens, at most `tokens`, at which every group can resume. Changes nothing."""
        size = self.spec.block_tokens
        _, depth, resume = self._finder.found(chain, min(len(chain), tokens // size))
        return (resume.stop if self._stateful else depth) * size

    def pin(self, request: Hashable, chain: Sequence[int], tokens: int) -> int:
        """Pins what `request`, which will receive the KV of `tokens` tokens, need not receive, until `drop`; how many
        tokens that is, fewer than `tokens`. Rows of every stored block, as long as the windows at `tokens` lie behind
        them, else those up to a snapshot, which has the windows' rows there.

        Raises InvariantError when `request` has begun already.
        """
        if request in self._jobs:
            raise InvariantError(f"{request} has begun already")
        spec, size = self.spec, self.spec.block_tokens
        node, depth, resume = self._finder.found(chain, min(len(chain), (tokens - 1) // size))
        at = resume
        if depth > resume.stop and (stop := min(depth, (tokens - spec.window_tokens) // size)) > resume.stop:
            self._finder.last = None
            at = self._store.end_at(node if stop == depth else follow(self._store.root, chain, stop)[0], stop)
        self._store.pin(at)
        self._jobs[request] = _Job(at, [], at.stop)
        return at.stop * size

    def begin(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        *,
        more: int = 0,
        copies: int = 0,
        rows: bool = False,
    ) -> Grant | None:
        """Pins the usable prefix of `chain` and reserves working blocks for the rest of `tokens` tokens (the chain's,
        and those that are still to be made) and, where the model has state, for the running state.

        `more`: blocks beside these. `copies`: how often the request holds its prefix once more, in blocks of its own
        (an engine whose sequences are contiguous); a prefix for which that leaves no room is used in part, or not.
        `rows`: the state comes from elsewhere, so all stored blocks are of use, with or without a snapshot.

        None when there is no room now: nothing has changed. Whoever `can_ever` will get room when others end, if need
        be without the prefix (`cached_tokens` is 0 when its snapshot would not fit beside the request). Raises
        InvariantError when `request` has begun already.
        """
        if request in self._jobs:
            raise InvariantError(f"{request} has begun already")
        spec, store = self.spec, self._store
        size = spec.block_tokens
        node, depth, resume = self._finder.found(chain, min(len(chain), tokens // size))
        self._finder.last = None
        room = -(-tokens // size)
        left = store.capacity_blocks - room - more - 2 * spec.snapshot_blocks
        if spec.snapshot_blocks and not rows:
            at = resume
            if at.state and copies * at.stop > left:
                at = store.root  # never room for the request, its state and the snapshot: it would wait for ever
        else:
            stop = depth
            if copies * depth > left:
                stop = max(0, left) // max(1, copies)
                node = follow(store.root, chain, stop)[0]
            at = store.end_at(node, stop)
        cached = at.stop
        need = room + (copies - 1) * cached + spec.snapshot_blocks + more
        store.pin(at)
        if not store.make_room(need):
            store.unpin(at)
            self.refused += 1
            return None
        store.tick += 1
        at.used = store.tick
        self._jobs[request] = _Job(at, store.lend(need), room)
        self.asked_tokens += tokens
        self.hit_tokens += cached * size
        return Grant(cached * size, depth * size, need)

    def progress(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int] = (),
        spare: Iterable[int] = (),
    ) -> Kept:
        """Of the work of `request`, which goes on, the first `tokens` tokens are done: others may use them already. As
        `end`, but it keeps its blocks, and what it made is pinned. With state only what a snapshot needs."""
        return self._finish(self._working_job(request), chain, tokens, snapshots, spare, over=False)

    def end(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int] = (),
        spare: Iterable[int] = (),
        *,
        rows: bool = False,
    ) -> Kept:
        """The work of `request` is done: its full blocks become prefix blocks, snapshots are kept at the lengths
        `snapshots` (tokens; as many as there is room for, first come) and at those of `spare` (cold ones, which take
        no room from others), what is left is free. `Placement` says which lengths are worth it. `rows`: full blocks
        beyond the last snapshot are kept too.

        `chain`: ids of full blocks, from the first; `tokens`: length that was computed. Lengths beyond either, or
        within the prefix that was resumed, are passed over. Raises LocalError for a length that is no multiple of
        `spec.snapshot_tokens`, or for more tokens than `begin` reserved.
        """
        job = self._working_job(request)
        kept = self._finish(job, chain, tokens, snapshots, spare, over=True, rows=rows)
        del self._jobs[request]
        self._store.unpin(job.node)
        return kept

    def ship(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        lease_ns: int,
        snapshots: Iterable[int] = (),
        spare: Iterable[int] = (),
    ) -> Kept:
        """As `end`, but a receiver elsewhere still reads: the prefix stays pinned, and what is not in it (the tail,
        the state) stays as transfer blocks, until `acknowledge`, or until `expire` at `lease_ns` or later."""
        job = self._working_job(request)
        kept = self._finish(job, chain, tokens, snapshots, spare, over=False)
        self._handed_over += 1
        job.handed_over = self._handed_over
        if len(self._leases) > 2 * len(self._jobs) + SPARE:
            self._leases = [lease for lease in self._leases if self._on_lease(lease)]
            heapify(self._leases)
        heappush(self._leases, (lease_ns, self._handed_over, request))
        return kept

    def acknowledge(self, request: Hashable) -> bool:
        """The receiver of `request` has everything: its transfer blocks are free. False when it holds none (any
        more)."""
        job = self._jobs.get(request)
        if job is None or not job.handed_over:
            return False
        self.drop(request)
        return True

    def expire(self, now_ns: int) -> list[Hashable]:
        """Frees the transfer blocks of every lease that has ended by `now_ns`; whose, by end of lease."""
        ended: list[Hashable] = []
        while self._leases and self._leases[0][0] <= now_ns:
            lease = heappop(self._leases)
            if self._on_lease(lease):
                self.drop(lease[2])
                ended.append(lease[2])
        return ended

    def drop(self, request: Hashable) -> None:
        """`request` is over, whatever it was at: its blocks are free, its pin is gone. Nothing where there is no such
        one."""
        job = self._jobs.pop(request, None)
        if job is not None:
            self._release(job)

    def insert(
        self, chain: Sequence[int], tokens: int, snapshots: Iterable[int] = (), spare: Iterable[int] = ()
    ) -> Kept:
        """Stores a prefix that came from elsewhere: as much of it, from its start, as there is room for.

        `snapshots` and `spare` as in `end`.
        """
        store, size = self._store, self.spec.block_tokens
        limit = min(len(chain), tokens // size)
        node, depth, _ = self._finder.found(chain, limit)
        self._finder.last = None
        stops = self._stops(snapshots, 0, limit) if self.spec.stateful else []
        cold = self._stops(spare, 0, limit) if self.spec.stateful else []
        at = store.end_at(node, depth)
        store.pin(at)
        limit = min(limit, depth + max(0, store.room - self.spec.snapshot_blocks))
        if self.spec.stateful:
            stops, cold = ([stop for stop in some if stop <= limit] for some in (stops, cold))
            limit = max([depth, *stops, *cold])
        store.make_room(limit - depth)
        job = _Job(at, store.lend(limit - depth), limit)
        kept = self._keep(job, chain, limit, stops, cold, over=True)
        store.unpin(job.node)
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
        at: Node | None = follow(self._store.root, chain, min(len(chain), tokens // size))[2]
        found = []
        while at is not None:
            if at.state:
                found.append(at.stop * size)
            at = at.parent
        return found[::-1]

    def changes(self) -> dict[int, bool]:
        """Of each block that became part of a stored prefix, or ceased to be, since the last call: whether it is now.

        Raises LocalError for a pool that does not tell.
        """
        moves = self._store.moves
        if moves is None:
            raise LocalError("this pool does not tell what changed")
        found = {move if move >= 0 else ~move: move >= 0 for move in moves}
        moves.clear()
        return found

    # Requests.

    def _working_job(self, request: Hashable) -> _Job:
        job = self._jobs.get(request)
        if job is None or job.handed_over:
            raise LocalError(f"{request} is not at work")
        return job

    def _stops(self, lengths: Iterable[int], above: int, limit: int) -> list[int]:
        """Those of `lengths` (tokens) that are above `above` blocks and at most `limit`, in blocks."""
        size, every = self.spec.block_tokens, self.spec.snapshot_tokens
        stops = []
        for length in lengths:
            if length % every:
                raise LocalError(f"snapshot: got length {length}; expected a multiple of {every}")
            stop = length // size
            if above < stop <= limit:
                stops.append(stop)
        return stops

    def _finish(
        self,
        job: _Job,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int],
        spare: Iterable[int],
        *,
        over: bool,
        rows: bool = False,
    ) -> Kept:
        """What a request made is kept, and the snapshot that it resumed from is superseded."""
        size = self.spec.block_tokens
        if tokens > job.room * size:
            raise LocalError(f"tokens: got {tokens}; expected at most {job.room * size}, what was reserved")
        before = job.node
        limit = min(len(chain), tokens // size)
        if not self.spec.snapshot_blocks:
            kept = self._keep(job, chain, limit, (), (), over=over)
            self._finder.remember(job.node, self._store.nodes)
            return kept
        stops = self._stops(snapshots, before.stop, limit)
        cold = self._stops(spare, before.stop, limit)
        limit = limit if rows else max([0, *stops, *cold])
        kept = self._keep(job, chain, limit, stops, cold, over=over)
        if rows:
            self._store.mark(job.node)
        self._finder.remember(job.node, self._store.nodes)
        if self.supersede and before.state is not None and job.node is not before:
            self._store.supersede(before)
        return kept

    def _keep(
        self, job: _Job, chain: Sequence[int], limit: int, stops: Sequence[int], spare: Sequence[int], *, over: bool
    ) -> Kept:
        """Makes a prefix of `limit` blocks of the job's and moves its pin to the end of it; `stops`, `spare`: blocks at
        which snapshots are wanted. The job keeps the blocks that are left, unless it is `over`."""
        store, size = self._store, self.spec.block_tokens
        before, blocks = job.node, job.blocks
        first = before.stop
        if limit < first:
            limit = first
        store.tick += 1
        self._finder.last = None
        node, depth, _ = follow(before, chain, limit)
        at = store.end_at(node, depth)
        new: list[int] = []
        if depth < limit:
            new = blocks[depth - first : limit - first]
            at = store.grow(at, list(chain[depth:limit]), new.copy())
        if depth > first:  # somebody else stored these meanwhile
            store.take_back(blocks[: depth - first])
        del blocks[: limit - first]
        if over:
            store.take_back(blocks)
            job.blocks = []
        if not self.spec.snapshot_blocks:
            at.used = store.tick
        store.pin(at)
        job.node = at
        store.unpin(before)
        if not stops and not spare:
            return Kept(limit * size, new, [])
        states = store.take_snapshots(at, stops, spare)
        return Kept(limit * size, new, [(stop * size, state) for stop, state in states])

    def _release(self, job: _Job) -> None:
        self._finder.last = None
        self._store.take_back(job.blocks)
        self._store.unpin(job.node)

    def _on_lease(self, lease: tuple[int, int, Hashable]) -> bool:
        """Whether what was handed over with `lease` is still held."""
        job = self._jobs.get(lease[2])
        return job is not None and job.handed_over == lease[1]

    def validate(self) -> None:
        """Raises InvariantError when the books do not balance. The cost is of the whole pool."""
        audit(self)
