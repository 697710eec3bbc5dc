"""One tier of a cache: a prefix pool whose blocks may be filled from another tier, and read by it.

It knows its own chains and blocks; it does not know the other tier, nor when something is moved.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from prfaas.core.cache.prefixes import PrefixPool, _Job
from prfaas.core.cache.reading import ReadBlocks
from prfaas.core.cache.runs import follow, numbers
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.store import COLD


@dataclass(frozen=True, slots=True)
class Opened:
    """Of a prefix that is to be filled: `depth`, its blocks that are stored already; `blocks`, those for the rest of
    it; `state`, those for the snapshot at its end."""

    depth: int
    blocks: list[int]
    state: list[int]


class Tier(PrefixPool):
    """A pool whose free blocks may still be read (`free`). See `PrefixPool` for all the rest."""

    def __init__(self, spec: PoolSpec, capacity_blocks: int, *, supersede: bool = True) -> None:
        super().__init__(spec, capacity_blocks, supersede=supersede)
        self.free = self._store.free = ReadBlocks(capacity_blocks)

    def open(
        self, request: Hashable, chain: Sequence[int], tokens: int, *, more: int = 0, free_only: bool = False
    ) -> Opened | None:
        """`request` begins, and the whole of `chain` will be filled from elsewhere: pins all that is stored of it,
        resumable or not, and reserves blocks for the rest of `tokens` tokens, the state, and `more`.

        The blocks for the snapshot are the last ones of the state and `more` together. None when there is no room now,
        or with `free_only` none without evicting.
        """
        store, size = self._store, self.spec.snapshot_blocks
        node, depth, _ = follow(store.root, chain, len(chain))
        at = store.end_at(node, depth)
        self._finder.last = None
        room = -(-tokens // self.spec.block_tokens)
        need = room - depth + size + more
        store.pin(at)
        if (free_only and need > store.free.count) or not store.make_room(need):
            store.unpin(at)
            return None
        blocks = store.lend(need)
        self._jobs[request] = _Job(at, blocks, room)
        return Opened(depth, blocks[: len(chain) - depth], blocks[need - size :])

    def land(self, request: Hashable, chain: Sequence[int], state: Sequence[int], *, cold: bool = False) -> None:
        """What `open` reserved for `chain` is filled: it is a stored prefix, with `state` as the snapshot at its end,
        and pinned. `request` goes on with the blocks that are left."""
        job, store = self._working_job(request), self._store
        gone = set(state)
        job.blocks = [number for number in job.blocks if number not in gone]
        self._keep(job, chain, len(chain), (), (), over=False)
        at = job.node
        if not state:
            return
        if at.state is None:
            store.lent -= len(state)
            store.stored_blocks += len(state)
            store.pinned += len(state)
            at.state = list(state)
            at.used = store.tick - COLD if cold else store.tick
        else:  # somebody else stored it meanwhile
            store.take_back(list(state))

    def hold(self, reader: Hashable, chain: Sequence[int]) -> tuple[list[int], list[int]]:
        """`chain`, which is stored, is read by `reader` until `drop` and stays; it is used no more often for that. Its
        blocks, and those of the snapshot at its end."""
        store = self._store
        at = store.end_at(follow(store.root, chain, len(chain))[0], len(chain))
        self._finder.last = None
        store.pin(at)
        self._jobs[reader] = _Job(at, [], at.stop)
        return numbers(at), list(at.state or ())

    def cool(self, reader: Hashable) -> None:
        """What `reader` holds goes before all that is not cold, unless it is used again: it is elsewhere too."""
        self._store.tick += 1
        self._jobs[reader].node.used = self._store.tick - COLD

    def touch(self, chain: Sequence[int], *, cold: bool = False) -> bool:
        """Whether `chain` can be resumed at its end; it is refreshed, unless it is `cold`."""
        store = self._store
        node, depth, resume = follow(store.root, chain, len(chain))
        if (resume.stop if self.spec.stateful else depth) < len(chain):
            return False
        if not cold:
            store.tick += 1
            node.used = store.tick
        return True

    def agrees(self, chain: Sequence[int], tokens: int) -> int:
        """How far what is stored agrees with `chain`, at most `tokens`, in tokens."""
        size = self.spec.block_tokens
        return self._finder.found(chain, min(len(chain), tokens // size))[1] * size

    def forget(self, chain: Sequence[int]) -> None:
        """`chain` can not be resumed at its end any more, unless somebody holds it."""
        store = self._store
        node, depth, resume = follow(store.root, chain, len(chain))
        self._finder.last = None
        if not chain or depth < len(chain):
            return
        if self.spec.stateful:
            if resume.stop == depth and not resume.pins:
                store._evict_snapshot(resume)
        elif not node.holds:
            below = [node]
            for one in below:
                below.extend(one.children.values())
            parent = node
            for one in reversed(below):
                parent = store._remove(one)
            if parent is not store.root:
                store._tidy(parent)

    def rename(self, request: Hashable, name: Hashable) -> None:
        """What `request` holds, `name` does from now on."""
        self._jobs[name] = self._jobs.pop(request)

    def release(self, request: Hashable, count: int) -> None:
        """The last `count` blocks of `request` are free."""
        blocks = self._jobs[request].blocks
        self._store.take_back(blocks[len(blocks) - count :])
        del blocks[len(blocks) - count :]
