"""A stretch of an engine's own blocks that follow one another, and the canonical blocks that end in it.

It knows an engine's block size, tokens and who holds which position; it does not know events. Engines' blocks may be
shorter or longer than canonical ones (64 tokens), and need not divide them: a canonical block is held while every
engine block that has some of its tokens is. Where blocks do not end on 64-token boundaries, the tokens are kept, for a
branch may begin anywhere.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from prfaas.model.blockhash import BLOCK_TOKENS, block_hashes

Key = tuple[int | None, str]
"""Whose copy: a group of layers that is kept apart, or None; and the tier."""
NO_TOKENS = array("I")


class Whole(NamedTuple):
    """Canonical blocks that follow one another, the first one `parent` (None: it is a prompt's first)."""

    hashes: tuple[int, ...]
    parent: int | None


class Stretch:
    """`hashes`: the engine's, of `size` tokens each, from token `start` on. `parent`, `at`: the block before, where a
    canonical block reaches over from it. `base`: the canonical hash before `canon`, or the root; `canon`: canonical
    hashes that end within, the first of which is block number `first`. `held`: positions by key.
    """

    __slots__ = (
        "at",
        "base",
        "canon",
        "children",
        "first",
        "hashes",
        "head",
        "held",
        "parent",
        "size",
        "start",
        "tokens",
    )

    def __init__(self, size: int, start: int, base: int, head: array[int], parent: Stretch | None, at: int) -> None:
        self.hashes: list[int] = []
        self.size = size
        self.start = start
        self.first = start // BLOCK_TOKENS
        self.base = base
        self.canon: list[int] = []
        self.head = head
        self.tokens = NO_TOKENS if self.aligned else array("I")
        self.held: dict[Key, int] = {}
        self.parent = parent if start % BLOCK_TOKENS else None
        self.at = at
        self.children: list[Stretch] = []
        if self.parent is not None:
            self.parent.children.append(self)

    @property
    def aligned(self) -> bool:
        """Whether every block of it ends on a canonical boundary."""
        return not self.size % BLOCK_TOKENS and not self.start % BLOCK_TOKENS

    def end(self, position: int) -> int:
        """The token after the block at `position`."""
        return self.start + (position + 1) * self.size

    def extend(self, hashes: list[int], tokens: array[int]) -> None:
        """These blocks, with these tokens, follow."""
        tail = NO_TOKENS if self.aligned else self.tail(self.start + len(self.hashes) * self.size)
        last = self.canon[-1] if self.canon else self.base
        self.canon += block_hashes(tail + tokens, last)
        self.hashes += hashes
        if not self.aligned:
            self.tokens += tokens

    def shorten(self, count: int) -> None:
        """Only the first `count` blocks are left."""
        del self.hashes[count:]
        end = self.start + count * self.size
        del self.canon[max(0, end // BLOCK_TOKENS - self.first) :]
        if not self.aligned:
            del self.tokens[count * self.size :]

    def tail(self, end: int) -> array[int]:
        """The tokens from the last canonical boundary to token `end`, which is where one of its blocks ends."""
        wanted, own = end % BLOCK_TOKENS, end - self.start
        if wanted <= own:
            return self.tokens[own - wanted : own]
        return self.head[len(self.head) - (wanted - own) :] + self.tokens[:own]

    def hash_before(self, end: int) -> int:
        """The canonical hash of the last whole block before token `end`, or the root."""
        at = end // BLOCK_TOKENS - self.first - 1
        return self.canon[at] if at >= 0 else self.base

    def whole(self, low: int, high: int, key: Key) -> Iterator[Whole]:
        """Canonical blocks that have tokens of blocks [low, high), and of which `key` holds everything."""
        first, stop = self._reach(low, high)
        run: list[int] = []
        for number in range(first, stop):
            at = number - self.first
            if at < len(self.canon) and self._has(number, key):
                run.append(self.canon[at])
            elif run:
                yield self._piece(run, number - len(run))
                run = []
        if run:
            yield self._piece(run, min(stop, self.first + len(self.canon)) - len(run))
        for child in self._over(low, high):
            if child.canon and child._has(child.first, key):
                yield child._piece(child.canon[:1], child.first)

    def touched(self, low: int, high: int) -> list[int]:
        """Canonical blocks that have tokens of blocks [low, high)."""
        first, stop = self._reach(low, high)
        found = self.canon[max(0, first - self.first) : max(0, stop - self.first)]
        for child in self._over(low, high):
            found += child.canon[:1]
        return found

    def ending(self, position: int) -> int | None:
        """The canonical block that ends where the block at `position` does."""
        end = self.end(position)
        return None if end % BLOCK_TOKENS else self.canon[end // BLOCK_TOKENS - self.first - 1]

    def union(self) -> int:
        """Positions that any key holds."""
        found = 0
        for mask in self.held.values():
            found |= mask
        return found

    def _reach(self, low: int, high: int) -> tuple[int, int]:
        first = (self.start + low * self.size) // BLOCK_TOKENS
        return first, -(-(self.start + high * self.size) // BLOCK_TOKENS)

    def _over(self, low: int, high: int) -> Iterator[Stretch]:
        """Stretches whose first canonical block has tokens of blocks [low, high) here."""
        stop = self.start + high * self.size
        todo = [one for one in self.children if low <= one.at and one.first * BLOCK_TOKENS < stop]
        while todo:
            child = todo.pop()
            yield child
            todo += [one for one in child.children if one.first == child.first]

    def _has(self, number: int, key: Key) -> bool:
        """Whether `key` holds every engine block that has tokens of canonical block `number`."""
        low, high = number * BLOCK_TOKENS, (number + 1) * BLOCK_TOKENS
        at: Stretch | None = self
        while at is not None:
            first = max(0, low - at.start) // at.size
            stop = min(len(at.hashes), -(-(high - at.start) // at.size))
            wanted = (1 << stop) - (1 << first)
            if at.held.get(key, 0) & wanted != wanted:
                return False
            if low >= at.start:
                return True
            high, at = at.start, at.parent
        return False

    def _piece(self, run: list[int], number: int) -> Whole:
        at = number - self.first
        before = self.canon[at - 1] if at else self.base
        return Whole(tuple(run), before if number else None)
