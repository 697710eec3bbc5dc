"""A cache of two tiers, accelerator memory and host memory: what is moved between them, and who waits for it.

It knows two pools and moves; it does not know who copies bytes, how long that takes, or what a block weighs. Each tier
is a pool of its own that holds no block without the one before it, so either can be resumed from alone, and what leaves
one never breaks the other.

What the accelerator evicts is copied to host blocks first: the blocks of the prefix that the host does not hold, and
the snapshot. Who got the evicted blocks may not write to them until that is reported as `moved`. A request whose
usable prefix is longer in the host has accelerator blocks for it, and begins when it is there; the host's copy, which
is now in both tiers, goes before all others until the accelerator evicts its own. While a move is under way the blocks
that it writes are working blocks, the host blocks that it reads are pinned, and the accelerator blocks that it reads
are not written to. A move that fails leaves nothing: what it was to bring is not there.

Nothing is evicted while a request is at work: it says at its start how many snapshots it will want, and gets room for
them, so that what they displace is out when they are taken.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from prfaas.core.cache.grants import Grant, Held, Kept
from prfaas.core.cache.moves import Fetch, Move, Saving, Settled, Work
from prfaas.core.cache.runs import Node, numbers
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.tier import Tier
from prfaas.core.cache.tieraudit import audit_tiers
from prfaas.core.errors import InvariantError, LocalError


class TieredPool:
    """`capacity_blocks` of the accelerator and `host_blocks` of the host; 0: one tier, a `PrefixPool` and no more.

    Counters since the start: `asked_tokens`, `near_tokens` and `host_tokens` (hits, by the tier that they came from; of
    the host those that have come), `refused` (no room); `saved_blocks` and `fetched_blocks` (moved to the host, and
    back), `failed_blocks` (moves that failed), `lost_blocks` (evicted without a copy: no room in the host, of cold
    snapshots no free room).
    """

    def __init__(self, spec: PoolSpec, capacity_blocks: int, host_blocks: int, *, supersede: bool = True) -> None:
        if host_blocks < 0:
            raise LocalError(f"host_blocks: got {host_blocks}; expected at least 0")
        self.spec = spec
        self.near = Tier(spec, capacity_blocks, supersede=supersede)
        self.host = Tier(spec, host_blocks, supersede=False) if host_blocks else None
        if self.host is not None:
            self.near._store.leaves = self._leaves
        self.asked_tokens = self.near_tokens = self.host_tokens = self.refused = 0
        self.saved_blocks = self.fetched_blocks = self.failed_blocks = self.lost_blocks = 0
        self._work: dict[Hashable, Work] = {}
        self._savings: dict[int, Saving] = {}
        self._fetches: dict[int, Fetch] = {}
        self._coming: dict[tuple[int, int], int] = {}
        self._waiting: dict[int, list[Work]] = {}
        self._out: list[Move] = []
        self._number = 0

    @property
    def moving(self) -> int:
        """Moves under way, and those that wait for their blocks."""
        return len(self._savings) + len(self._fetches)

    def usable(self, chain: Sequence[int], tokens: int) -> int:
        """Longest length in tokens, at most `tokens`, that either tier can resume. Changes nothing."""
        here = self.near.usable(chain, tokens)
        return here if self.host is None else max(here, self.host.usable(chain, tokens))

    def fetched(self, chain: Sequence[int], tokens: int) -> int:
        """Of `usable`, tokens that the host would have to send."""
        return self.usable(chain, tokens) - self.near.usable(chain, tokens)

    def begin(
        self, request: Hashable, chain: Sequence[int], tokens: int, *, snapshots: int = 0, fetch: bool = True
    ) -> Grant | None:
        """As `PrefixPool.begin`, with the usable prefix of both tiers and room for `snapshots` snapshots; without
        `fetch` that of the accelerator alone, for whom what is in the host would come too late.

        The request may write once it is `ready`: at once, or when a move is `moved`. Raises InvariantError when it has
        begun already.
        """
        if request in self._work:
            raise InvariantError(f"{request} has begun already")
        size, state = self.spec.block_tokens, self.spec.snapshot_blocks
        here = self.near.usable(chain, tokens)
        shared = self._shared(chain, tokens)
        coming = None
        more = snapshots * state
        left = self.near.capacity_blocks - -(-tokens // size) - 2 * state
        if fetch and self.host is not None and left >= state and (there := self.host.usable(chain, tokens)) > here:
            more = min(more, left - state)
            coming = self._open(request, chain[: there // size], tokens, more, there - here)
            grant = None if coming is None else Grant(there, there, len(self.near.held(request).own))
        else:
            more = max(0, min(more, left))
            grant = self.near.begin(request, chain, tokens, more=more)
        if grant is None:
            self.refused += 1
            return None
        work = self._work[request] = Work(request, more, coming)
        self._wait(work)
        self.asked_tokens += tokens
        self.near_tokens += grant.cached_tokens - (coming.gained if coming else 0)
        return Grant(grant.cached_tokens, max(grant.shared_tokens, shared), grant.blocks)

    def _shared(self, chain: Sequence[int], tokens: int) -> int:
        """How far what either tier stores agrees with `chain`, in tokens."""
        tiers = (self.near,) if self.host is None else (self.near, self.host)
        return max(tier.agrees(chain, tokens) for tier in tiers)

    def ready(self, request: Hashable) -> bool:
        """Whether `request`, which has begun, may work. Raises LocalError when it has not begun."""
        work = self._work.get(request)
        if work is None:
            raise LocalError(f"{request} holds no blocks")
        return not work.waits and work.fetch is None

    def take_moves(self) -> list[Move]:
        """The moves that may be made since the last call, in any order; each ends by `moved` or `failed`."""
        out, self._out = self._out, []
        return out

    def moved(self, number: int) -> Settled:
        """The move is made. Raises LocalError when there is no such one."""
        settled = Settled()
        saving = self._savings.get(number)
        if saving is not None and self.host is not None:
            self.host.land(number, saving.chain, saving.state, cold=saving.cold)
            self.host.drop(number)
            self.saved_blocks += len(saving.move.near)
            self._saved(saving, settled)
            return settled
        fetch = self._end_fetch(number)
        self.fetched_blocks += len(fetch.move.near)
        assert self.host is not None
        self.host.cool(number)
        self.host.drop(number)
        work = fetch.work
        if work is None:
            self.near.drop(_left(number))
            return settled
        work.fetch = None
        self.near.land(work.request, fetch.chain, fetch.state)
        self.host_tokens += fetch.gained
        settled.ready.append(work.request)
        return settled

    def failed(self, number: int) -> Settled:
        """The move was not made, or in part. Raises LocalError when there is no such one."""
        settled = Settled()
        saving = self._savings.get(number)
        if saving is not None and self.host is not None:
            self.host.drop(number)
            self.failed_blocks += len(saving.move.near)
            self._saved(saving, settled)
            return settled
        fetch = self._end_fetch(number)
        self.failed_blocks += len(fetch.move.near)
        assert self.host is not None
        self.host.drop(number)
        self.host.forget(fetch.chain)
        if fetch.work is None:
            self.near.drop(_left(number))
            return settled
        request = fetch.work.request
        del self._work[request]
        self.near.drop(request)
        settled.over.append(request)
        return settled

    def progress(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int] = (),
        spare: Iterable[int] = (),
    ) -> Kept:
        """See `PrefixPool.progress`; snapshots are as many as fit what is free and the room that was asked for."""
        work = self._at_work(request)
        return self.near.progress(request, chain, tokens, *self._fitting(work, chain, tokens, snapshots, spare))

    def end(
        self,
        request: Hashable,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int] = (),
        spare: Iterable[int] = (),
    ) -> Kept:
        """See `PrefixPool.end`; snapshots are as many as fit what is free and the room that was asked for."""
        work = self._at_work(request)
        fitting = self._fitting(work, chain, tokens, snapshots, spare, over=True)
        kept = self.near.end(request, chain, tokens, *fitting)
        del self._work[request]
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
        """See `PrefixPool.ship`; snapshots are as many as fit what is free and the room that was asked for."""
        work = self._at_work(request)
        fitting = self._fitting(work, chain, tokens, snapshots, spare)
        self.near.release(request, work.room)
        work.room = 0
        return self.near.ship(request, chain, tokens, lease_ns, *fitting)

    def acknowledge(self, request: Hashable) -> bool:
        """See `PrefixPool.acknowledge`."""
        return self.near.acknowledge(request) and self._work.pop(request, None) is not None

    def expire(self, now_ns: int) -> list[Hashable]:
        """See `PrefixPool.expire`."""
        ended = self.near.expire(now_ns)
        for request in ended:
            del self._work[request]
        return ended

    def drop(self, request: Hashable) -> None:
        """`request` is over, whatever it was at. Blocks that a move writes to are free when that has ended."""
        work = self._work.pop(request, None)
        if work is None:
            return
        for move in work.waits:
            self._waiting[move].remove(work)
        fetch = work.fetch
        if fetch is not None and self.host is not None:
            number = fetch.move.number
            if not work.waits:  # under way
                fetch.work = None
                self.near.rename(request, _left(number))
                return
            del self._fetches[number]
            self.host.drop(number)
        self.near.drop(request)

    def held(self, request: Hashable) -> Held:
        """See `PrefixPool.held`."""
        return self.near.held(request)

    # To the host.

    def _leaves(self, node: Node) -> None:
        """The accelerator is about to evict the end of `node`."""
        host = self.host
        assert host is not None
        chain = _chain(node)
        cold = node.used < 0
        if host.touch(chain, cold=cold) or (node.stop, chain[-1]) in self._coming:
            return
        self._number += 1
        number = self._number
        opened = host.open(number, chain, len(chain) * self.spec.block_tokens, free_only=cold)
        if opened is None:
            self.lost_blocks += len(node.state or node.blocks)
            return
        near = (*numbers(node)[opened.depth :], *(node.state or ()))
        move = Move(number, True, near, (*opened.blocks, *opened.state))
        saving = self._savings[number] = Saving(move, chain, opened.state, cold)
        for key in self._keys(saving):
            self._coming[key] = self._coming.get(key, 0) + 1
        self.near.free.reads(number, near)
        self._out.append(move)

    def _saved(self, saving: Saving, settled: Settled) -> None:
        """The move to the host has ended, in whatever way."""
        number = saving.move.number
        del self._savings[number]
        self.near.free.read(number, saving.move.near)
        for key in self._keys(saving):
            self._coming[key] -= 1
            if not self._coming[key]:
                del self._coming[key]
        for work in self._waiting.pop(number, ()):
            work.waits.discard(number)
            if work.waits:
                continue
            if work.fetch is None:
                settled.ready.append(work.request)
            else:
                self._out.append(work.fetch.move)

    def _keys(self, saving: Saving) -> list[tuple[int, int]]:
        """The prefixes that can be resumed once it is there: its end, without state every one."""
        chain = saving.chain
        if self.spec.stateful:
            return [(len(chain), chain[-1])]
        return list(enumerate(chain, 1))

    # From the host.

    def _open(self, request: Hashable, chain: Sequence[int], tokens: int, more: int, gained: int) -> Fetch | None:
        """Blocks for `request`, and what it resumes from is pinned in the host. None: no room now."""
        host, near = self.host, self.near
        assert host is not None
        self._number += 1
        number = self._number
        blocks, state = host.hold(number, chain)
        opened = near.open(request, chain, tokens, more=more + self.spec.snapshot_blocks)
        if opened is None:
            host.drop(number)
            return None
        move = Move(number, False, (*opened.blocks, *opened.state), (*blocks[opened.depth :], *state))
        fetch = self._fetches[number] = Fetch(move, chain, opened.state, gained)
        return fetch

    def _end_fetch(self, number: int) -> Fetch:
        fetch = self._fetches.get(number)
        if fetch is None or (fetch.work is not None and fetch.work.waits):
            raise LocalError(f"no move {number} is under way")
        del self._fetches[number]
        return fetch

    # Requests.

    def _wait(self, work: Work) -> None:
        """For the moves that read what `work` was given; its own may be made when they are."""
        readers = self.near.free.readers
        if readers:
            work.waits = {move for one in self.near.held(work.request).own for move in readers.get(one, ())}
            for move in sorted(work.waits):
                self._waiting.setdefault(move, []).append(work)
        if work.fetch is not None:
            work.fetch.work = work
            if not work.waits:
                self._out.append(work.fetch.move)

    def _at_work(self, request: Hashable) -> Work:
        work = self._work.get(request)
        if work is None or work.waits or work.fetch is not None:
            raise LocalError(f"{request} is not at work")
        return work

    def _fitting(
        self,
        work: Work,
        chain: Sequence[int],
        tokens: int,
        snapshots: Iterable[int],
        spare: Iterable[int],
        *,
        over: bool = False,
    ) -> tuple[list[int], list[int]]:
        """Of the lengths those for which there are blocks that may be written to now, so that nothing is evicted."""
        wanted, cold = list(snapshots), list(spare)
        size = self.spec.snapshot_blocks
        if self.host is None or not size:
            return wanted, cold
        near = self.near
        ready = near.free.ready + (size if over else 0)
        missing = (len(wanted) + len(cold)) * size - ready
        if over:
            missing = work.room
        if missing > 0 and work.room:
            given = min(work.room, missing)
            near.release(work.request, given)
            work.room -= given
            ready += given
        if (len(wanted) + len(cold)) * size <= ready:
            return wanted, cold
        there = set(near.snapshots(chain, tokens))
        fit = ready // size
        found: list[list[int]] = []
        for lengths in (wanted, cold):
            taken = []
            for length in lengths:
                if length in there:
                    taken.append(length)
                elif fit:
                    taken.append(length)
                    fit -= 1
            found.append(taken)
        return found[0], found[1]

    def validate(self) -> None:
        """Raises InvariantError when the books do not balance. The cost is of all that is stored."""
        audit_tiers(self)


def _left(number: int) -> Hashable:
    """The holder of blocks that a move writes to, whose request is over."""
    return "left", number


def _chain(node: Node) -> list[int]:
    """Ids of the whole prefix that ends at the end of `node`."""
    path: list[list[int]] = []
    at: Node | None = node
    while at is not None:
        path.append(at.ids)
        at = at.parent
    return [one for ids in reversed(path) for one in ids]
