"""What a node tells of its prefix cache, in canonical blocks: stored, removed, and all that is held.

It knows the node's own block numbers, token ids and canonical hashes; it does not know pools, sockets or who listens.

The node's blocks have a size of their own. A canonical block is held while the block in which it ends is: a pool never
keeps a block without those before it. Where a block is no multiple of 64 tokens, two of the node's blocks may end the
same canonical one (their prefixes part behind it), so holders are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prfaas.model.blockhash import BLOCK_TOKENS, block_hashes
from prfaas.wire.kvevents import BlocksRemoved, BlocksStored, KVEvent

STATE_GROUP = 1
"""The group of snapshots: all request-level state at one length, windows included."""
STATE_KIND = "mamba"
NOT_TOLD = ()
"""Tokens are not sent: canonical hashes need no map."""
RUN_BLOCKS = 4096
"""Blocks in one event, at most."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The canonical blocks that end in one of the node's blocks, after `parent`; or, `state`, the one at whose end a
    snapshot is."""

    hashes: tuple[int, ...]
    parent: int | None
    state: bool = False


class Telling:
    """Of one node. `root`: see `model.blockhash.CacheKey`. `publish` is told of every change, once, in order.

    `stateful`: blocks alone can not be resumed from. Whoever listens must know that before a state is stored, for there
    may be rows that no state belongs to: so the first block that is told of has one, which is taken back at once.
    """

    def __init__(self, root: int, publish: Callable[..., None] = lambda *events: None) -> None:
        self.publish = publish
        self.stateful = False
        self._said = False
        self._root = root
        self._ends: dict[int, Ends] = {}
        self._held: dict[int, tuple[int, int | None]] = {}
        """Of each canonical block held, parents first: by how many of the node's blocks, and its parent."""
        self._states: dict[int, int] = {}

    def ends(
        self, ids: Sequence[int], block_tokens: int, kept: tuple[int, Sequence[int]], states: Mapping[int, int]
    ) -> dict[int, Ends]:
        """What ends in new blocks of a sequence with these `ids`, by number. `kept`: the index of the first of them,
        and their numbers; `states`: the number that stands for the snapshot at each length."""
        first, numbers = kept
        last = max([(first + len(numbers)) * block_tokens, *states], default=0)
        hashes = block_hashes(ids[:last], self._root)
        found: dict[int, Ends] = {}
        for at, number in enumerate(numbers, first):
            start, stop = at * block_tokens // BLOCK_TOKENS, (at + 1) * block_tokens // BLOCK_TOKENS
            if start < stop:
                found[number] = Ends(tuple(hashes[start:stop]), hashes[start - 1] if start else None)
        for length, number in states.items():
            if length % BLOCK_TOKENS == 0:
                found[number] = Ends((hashes[length // BLOCK_TOKENS - 1],), None, state=True)
        return found

    def settle(self, changes: Mapping[int, bool], ends: Mapping[int, Ends]) -> None:
        """Of these of the node's blocks, some are stored from now on and others not any more; `ends` of those that are
        new. One that changed hands in between is both."""
        gone = [end for number in changes if (end := self._ends.pop(number, None)) is not None]
        new = {number: ends[number] for number, stored in changes.items() if stored and number in ends}
        self._ends |= new
        events: list[KVEvent] = []
        states = [block for end in gone if end.state for block in end.hashes if self._let_go_state(block)]
        if states:
            events.append(BlocksRemoved(tuple(states), group=STATE_GROUP))
        blocks = [block for end in gone if not end.state for block in reversed(end.hashes) if self._let_go(block)]
        if blocks:
            events.append(BlocksRemoved(tuple(blocks)))
        rows = list(self._stored(end for end in new.values() if not end.state))
        events += rows
        if rows and self.stateful and not self._said:
            self._said = True
            events += _no_state(rows)
        events += self._snapshots(end for end in new.values() if end.state)
        if events:
            self.publish(*events)

    def snapshot(self) -> Iterator[KVEvent]:
        """All that is held, parents first."""
        rows = list(_stored((block, parent) for block, (_, parent) in self._held.items()))
        yield from rows
        if rows and self.stateful:
            yield from _no_state(rows)
        for block in self._states:
            yield _state(block)

    def _let_go(self, block: int) -> bool:
        """One holder less; whether it was the last one."""
        count, parent = self._held[block]
        if count > 1:
            self._held[block] = (count - 1, parent)  # where it was: children come after it
            return False
        del self._held[block]
        return True

    def _let_go_state(self, block: int) -> bool:
        self._states[block] -= 1
        if self._states[block]:
            return False
        del self._states[block]
        return True

    def _stored(self, new: Iterable[Ends]) -> Iterator[BlocksStored]:
        fresh: list[tuple[int, int | None]] = []
        for end in new:
            parent = end.parent
            for block in end.hashes:
                count, _ = self._held.get(block, (0, None))
                self._held[block] = (count + 1, parent)
                if not count:
                    fresh.append((block, parent))
                parent = block
        return _stored(fresh)

    def _snapshots(self, new: Iterable[Ends]) -> Iterator[KVEvent]:
        for end in new:
            for block in end.hashes:
                self._states[block] = self._states.get(block, 0) + 1
                if self._states[block] == 1:
                    yield _state(block)


def _stored(blocks: Iterable[tuple[int, int | None]]) -> Iterator[BlocksStored]:
    """Of blocks with their parents: one event for those that follow one another."""
    run: list[int] = []
    above: int | None = None
    for block, parent in blocks:
        if run and (parent != run[-1] or len(run) == RUN_BLOCKS):
            yield BlocksStored(tuple(run), above, NOT_TOLD, BLOCK_TOKENS)
            run = []
        if not run:
            above = parent
        run.append(block)
    if run:
        yield BlocksStored(tuple(run), above, NOT_TOLD, BLOCK_TOKENS)


def _no_state(rows: Sequence[BlocksStored]) -> Sequence[KVEvent]:
    first = rows[0].hashes[:1]
    return (
        BlocksStored(first, None, NOT_TOLD, BLOCK_TOKENS, group=STATE_GROUP, kind=STATE_KIND),
        BlocksRemoved(first, group=STATE_GROUP),
    )


def _state(block: int) -> KVEvent:
    return BlocksStored((block,), None, NOT_TOLD, BLOCK_TOKENS, group=STATE_GROUP, kind=STATE_KIND)
