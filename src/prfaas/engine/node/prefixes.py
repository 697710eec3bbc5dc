"""The KV memory of one node: who works in it, what prefixes it keeps, and their pieces.

It knows `core.cache` and what sequences leave (`engine.reuse`). It does not know who waits for room, nor what is in a
piece. All books are kept on the event loop; engines read and make pieces elsewhere and never change one, so none of
them needs a lock. A piece is kept exactly as long as its block is part of a stored prefix: `validate` says so. Only a
hand-over that holds a prefix may have it longer (see `hold`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import lcm

from prfaas.core.cache.grants import Grant, Kept
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import InvariantError
from prfaas.engine.base import Limits
from prfaas.engine.node.chains import Chains
from prfaas.engine.node.telling import Ends, Telling
from prfaas.engine.reuse import Piece, Reuse
from prfaas.model.blockhash import BLOCK_TOKENS

NO_CHAIN: tuple[int, ...] = ()
NO_ENDS: dict[int, Ends] = {}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Room for `sequences` sequences of up to `room_tokens` tokens each, alike in their first `prompt` tokens.

    `chain`: ids of the full blocks of the prompt without its last token. `landed`: its KV comes from elsewhere, less
    what its owner holds (see `hold`). `keeps`: whether anything of it is to be kept. `resumes`: whether it may begin
    with what is kept. `lent`: only what is kept is read. `fetched`: what is not kept comes from elsewhere, and no
    engine works in this room.
    """

    room_tokens: int
    sequences: int = 1
    prompt: int = 0
    chain: Sequence[int] = NO_CHAIN
    landed: bool = False
    resumes: bool = False
    keeps: bool = False
    lent: bool = False
    fetched: bool = False


@dataclass(slots=True)
class _Hold:
    """What a receiver need not receive. `pinned`: it is part of a stored prefix, and stays."""

    tokens: int
    blocks: list[Piece]
    state: list[Piece]
    pinned: bool = True


NO_HOLD = _Hold(0, [], [], False)


@dataclass(slots=True)
class _Work:
    wanted: Wanted
    grant: Grant
    reuse: Reuse


class Prefixes:
    """`capacity_blocks` blocks. `spec` None: of this engine no prefix is kept, and `block_tokens` alone counts.

    `copies`: sequences work on a copy of their prefix. `placement`: where snapshots are wanted. `telling` is told
    of all that is kept, if anybody is.
    """

    def __init__(
        self,
        spec: PoolSpec | None,
        block_tokens: int,
        capacity_blocks: int,
        *,
        copies: bool = False,
        placement: Placement | None = None,
        telling: Telling | None = None,
    ) -> None:
        self._keeps = spec is not None
        self._spec = spec or PoolSpec(block_tokens)
        self._copies = copies
        self._placement = placement or Placement()
        self._telling = telling
        if telling is not None:
            telling.stateful = self._spec.stateful
        self._chains = Chains(self._spec.block_tokens)
        self._pool = PrefixPool(self._spec, capacity_blocks, tells=True)
        self._pieces: dict[int, Piece] = {}
        self._work: dict[str, _Work] = {}
        self._holds: dict[str, _Hold] = {}
        self._aside: dict[str, int] = {}
        """Owners that have room for snapshots on the way, and how many blocks."""

    @property
    def capacity_blocks(self) -> int:
        """All blocks."""
        return self._pool.capacity_blocks

    @property
    def working_blocks(self) -> int:
        """Blocks that sequences and transfers hold."""
        return self._pool.working_blocks

    @property
    def prefix_blocks(self) -> int:
        """Blocks of prefixes that are kept."""
        return self._pool.prefix_blocks

    @property
    def holds(self) -> int:
        """Hand-overs that hold a prefix and have not begun."""
        return len(self._holds)

    @property
    def copyable(self) -> bool:
        """Whether prefixes as the index counts them, in canonical blocks, can end where this node's blocks do."""
        size = self._spec.block_tokens
        return self._keeps and (BLOCK_TOKENS % size == 0 or self._spec.stateful)

    @property
    def stateful(self) -> bool:
        """Whether nothing can be resumed where no snapshot is kept."""
        return self._keeps and self._spec.stateful

    def kept(self, wanted: Wanted) -> bool:
        """Whether all of the prefix that was fetched can be resumed now."""
        return self._pool.usable(wanted.chain, wanted.room_tokens) == wanted.room_tokens

    def blocks_for(self, tokens: int) -> int:
        """Blocks for the rows of `tokens` tokens."""
        return -(-tokens // self._spec.block_tokens)

    def want(
        self,
        room_tokens: int,
        sequences: int = 1,
        prompt: Sequence[int] = (),
        *,
        landed: bool = False,
        fresh: bool = False,
    ) -> Wanted:
        """What to ask room for. `landed`: the prompt's KV comes from elsewhere; `fresh`: all of it must be computed."""
        if not self._keeps or not prompt:
            return Wanted(room_tokens, sequences)
        chain = self._chains.of(prompt, len(prompt) - 1)
        return Wanted(room_tokens, sequences, len(prompt), chain, landed, not landed and not fresh, True)

    def hold(self, owner: str, prompt: Sequence[int]) -> int:
        """How many tokens of `prompt` the owner of a hand-over need not receive, fewer than all but the last. They
        stay as they are until it begins, or ends.

        They stay pinned as long as nobody who has more than they to ask for needs their room. Then their blocks may
        go, and only the owner has the pieces: so whoever receives takes landing credit for these bytes as well.
        """
        if not self._keeps or owner in self._holds or len(prompt) < 2:
            return 0
        length = len(prompt) - 1
        tokens = self._pool.pin(_held(owner), self._chains.of(prompt, length), length)
        if tokens == 0:
            self._pool.drop(_held(owner))
            return 0
        there = self._pool.held(_held(owner))
        blocks, state = ([self._pieces[number] for number in some] for some in (there.prefix, there.state))
        self._holds[owner] = _Hold(tokens, blocks, state)
        return tokens

    def want_loan(self, tokens: Sequence[int]) -> Wanted | None:
        """What to ask room for to read the KV of all `tokens`; None when they are not kept at exactly that length."""
        chain = self._chains.of(tokens, len(tokens)) if self._keeps else NO_CHAIN
        if not tokens or self._pool.usable(chain, len(tokens)) != len(tokens):
            return None
        return Wanted(len(tokens), 1, len(tokens) + 1, chain, resumes=True, lent=True)

    def want_fetched(self, tokens: Sequence[int]) -> Wanted | None:
        """What to ask room for to keep the KV of all `tokens`, which comes from elsewhere; None when a prefix of that
        length cannot be kept."""
        every = self._spec.snapshot_tokens if self._spec.stateful else self._spec.block_tokens
        if not self._keeps or not tokens or len(tokens) % every:
            return None
        chain = self._chains.of(tokens, len(tokens))
        return Wanted(len(tokens), 1, len(tokens) + 1, chain, resumes=True, keeps=True, fetched=True)

    def rows(self, wanted: Wanted) -> int:
        """Blocks of rows that are taken for it; a loan takes some only where an engine reads a copy."""
        if wanted.lent and not self._copies:
            return 0
        return self.blocks_for(wanted.room_tokens) * wanted.sequences

    def begin(self, owner: str, wanted: Wanted) -> Reuse | None:
        """Room, and what the first sequence resumes from, which stays until `end`. None when there is no room now.

        Of one whose KV landed that is what it held.
        """
        hold = self._holds.get(owner, NO_HOLD) if wanted.landed else NO_HOLD
        chain = wanted.chain if wanted.resumes else NO_CHAIN
        if hold.tokens:
            chain = wanted.chain[: hold.tokens // self._spec.block_tokens]
        others = (wanted.sequences - 1) * (self.blocks_for(wanted.room_tokens) + self._spec.snapshot_blocks)
        grant = self._begin(owner, chain, wanted, others)
        may_take = grant is None and not (wanted.lent or wanted.fetched)  # copies take nothing from others
        if may_take and self._give_up_snapshots(wanted, others):
            grant = self._begin(owner, chain, wanted, others)
        if may_take and grant is None and self._unpinning_suffices(wanted, others):
            for holding, held in self._holds.items():
                if held.pinned and grant is None:
                    self._pool.drop(_held(holding))
                    held.pinned = False
                    grant = self._begin(owner, chain, wanted, others)
        if grant is None:
            self._settle({})  # what a hold had pinned may be gone, in vain
            return None
        reuse = self._resumed(owner, grant, wanted, hold)
        self._let_go(owner)
        self._work[owner] = _Work(wanted, grant, reuse)
        self._set_aside(owner, wanted, grant, reuse)
        self._settle({})
        return reuse

    def keep(self, owner: str) -> None:
        """What `owner` left is kept beside its room, as far as there is other room: it still holds its own."""
        work = self._work.get(owner)
        if work is not None:
            self._leave(
                owner, work, lambda chain, length, wanted, spare: self._pool.insert(chain, length, wanted + spare)
            )

    def end(self, owner: str) -> None:
        """`owner` is over: what it left is kept, all else it held is free. Harmless when it holds nothing."""
        work = self._work.get(owner)
        if work is not None:
            self._leave(
                owner,
                work,
                lambda chain, length, wanted, spare: self._pool.end(
                    owner, chain, length, wanted, spare, rows=work.reuse.rows
                ),
            )
            del self._work[owner]
        self._pool.drop(owner)
        self._let_go(owner)
        self._settle({})

    def validate(self) -> None:
        """Raises InvariantError when books do not balance, or pieces are not those of the stored blocks."""
        self._pool.validate()
        if len(self._pieces) != self._pool.prefix_blocks:
            raise InvariantError(f"{len(self._pieces)} pieces of {self._pool.prefix_blocks} blocks")
        if not set(self._aside) <= set(self._work):
            raise InvariantError("room for snapshots of a sequence that is over")
        if not self._work and self._pool.working_blocks:
            raise InvariantError(f"nobody works in {self._pool.working_blocks} blocks")
        if not self._work and not self._holds and self._pool.room_blocks != self._pool.capacity_blocks:
            raise InvariantError(f"nobody holds {self._pool.capacity_blocks - self._pool.room_blocks} blocks")

    def _begin(self, owner: str, chain: Sequence[int], wanted: Wanted, others: int) -> Grant | None:
        copies = int(self._copies and not wanted.fetched)
        return self._pool.begin(owner, chain, wanted.room_tokens, more=others, copies=copies, rows=wanted.landed)

    def _resumed(self, owner: str, grant: Grant, wanted: Wanted, hold: _Hold) -> Reuse:
        every = self._spec.snapshot_tokens if self._spec.stateful and wanted.keeps and not wanted.fetched else 0
        if wanted.keeps and wanted.room_tokens // max(1, every) <= (wanted.prompt - 1) // max(1, every):
            every = 0  # it ends before the first one in the answer
        stops = self._stops(grant, wanted) if self._spec.stateful and wanted.keeps else ()
        if wanted.landed:
            return Reuse(
                hold.tokens,
                hold.blocks,
                hold.state,
                stops=stops,
                every=every,
                keeps=wanted.keeps,
                stored=grant.cached_tokens,
                rows=wanted.keeps,
            )
        there = self._pool.held(owner)
        blocks, state = ([self._pieces[number] for number in some] for some in (there.prefix, there.state))
        return Reuse(grant.cached_tokens, blocks, state, stops=stops, every=every, keeps=wanted.keeps)

    def _stops(self, grant: Grant, wanted: Wanted) -> list[int]:
        stops, spare = self._placement.lengths(self._spec, grant, wanted.prompt, wanted.prompt - 1)
        if wanted.landed or wanted.fetched:  # its state comes as it is at the prompt's end
            return [stop for stop in (*stops, *spare) if stop == wanted.prompt - 1]
        return [*stops, *spare]

    # Room for snapshots between the moment they are taken and the end. Whoever needs room to begin gets that first.

    def _set_aside(self, owner: str, wanted: Wanted, grant: Grant, reuse: Reuse) -> None:
        size = self._spec.snapshot_blocks
        most = len(reuse.stops) + (reuse.every > 0)
        if not wanted.keeps or size == 0 or most == 0:
            return
        first = min(most, 2 + (grant.shared_tokens > grant.cached_tokens))  # the ends; others only take free room
        count = min(first, self._pool.room_blocks // size)
        free = self._pool.capacity_blocks - self._pool.used_blocks
        count = max(count, min(most, free // size))
        if count and self._pool.begin(_snapshots(owner), NO_CHAIN, 0, more=(count - 1) * size) is not None:
            reuse.allowed, self._aside[owner] = count, count * size

    def _give_up_snapshots(self, wanted: Wanted, others: int) -> bool:
        """Whether it made room that suffices."""
        need = self.blocks_for(wanted.room_tokens) + self._spec.snapshot_blocks + others
        if self._pool.room_blocks + sum(self._aside.values()) < need:
            return False
        for owner in list(self._aside):
            self._work[owner].reuse.allowed = 0
            self._take_back(owner)
            if self._pool.room_blocks >= need:
                break
        return True

    def _unpinning_suffices(self, wanted: Wanted, others: int) -> bool:
        """Whether there could be room without holds. Blocks that sequences have pinned as well count here too."""
        need = self.blocks_for(wanted.room_tokens) + self._spec.snapshot_blocks + others
        pinned = [self._pool.held(_held(owner)) for owner, hold in self._holds.items() if hold.pinned]
        blocks = {number for there in pinned for number in (*there.prefix, *there.state)}
        return bool(blocks) and self._pool.room_blocks + len(blocks) >= need

    def _let_go(self, owner: str) -> None:
        if self._holds.pop(owner, None) is not None:
            self._pool.drop(_held(owner))

    def _take_back(self, owner: str) -> None:
        if self._aside.pop(owner, None) is not None:
            self._pool.drop(_snapshots(owner))

    # What sequences leave.

    def _leave(
        self, owner: str, work: _Work, store: Callable[[Sequence[int], int, list[int], list[int]], Kept]
    ) -> None:
        self._take_back(owner)
        reuse = work.reuse
        if not reuse.keeps or reuse.length <= reuse.stored:
            reuse.let_go()
            return
        prompt = work.wanted.prompt
        chain = self._chains.of(reuse.ids, reuse.length, work.wanted.chain)
        wanted, spare = self._placement.lengths(self._spec, work.grant, prompt, reuse.length)
        wanted, spare = ([stop for stop in some if stop in reuse.states] for some in (wanted, spare))
        kept = store(chain, reuse.length, wanted, spare)
        self._settle(self._pieces_of(reuse, kept), self._ends_of(reuse, kept))
        reuse.let_go()
        reuse.keeps = False

    def _pieces_of(self, reuse: Reuse, kept: Kept) -> dict[int, Piece]:
        size = self._spec.block_tokens
        first, last = reuse.stored // size, kept.tokens // size
        found = {number: reuse.made[at - first] for at, number in enumerate(kept.blocks, last - len(kept.blocks))}
        for length, numbers in kept.states:
            found |= zip(numbers, reuse.states[length], strict=True)
        return found

    def _ends_of(self, reuse: Reuse, kept: Kept) -> dict[int, Ends]:
        if self._telling is None or not (kept.blocks or kept.states):
            return NO_ENDS
        size = self._spec.block_tokens
        first = kept.tokens // size - len(kept.blocks)
        states = {length: numbers[0] for length, numbers in kept.states}
        return self._telling.ends(reuse.ids, size, (first, kept.blocks), states)

    def _settle(self, made: dict[int, Piece], ends: dict[int, Ends] = NO_ENDS) -> None:
        changes = self._pool.changes()
        for number, stored in changes.items():
            if stored:
                self._pieces[number] = made[number]
            else:
                self._pieces.pop(number, None)
        if self._telling is not None and changes:
            self._telling.settle(changes, ends)


def _snapshots(owner: str) -> Hashable:
    return "snapshots", owner


def _held(owner: str) -> Hashable:
    return "held", owner


def placement_of(limits: Limits, spec: PoolSpec | None) -> Placement:
    """Snapshots on the way are taken where prefill ends a step anyway, so that they cost no more than their copy."""
    return Placement() if spec is None else Placement(lcm(limits.chunk_tokens, spec.snapshot_tokens))
