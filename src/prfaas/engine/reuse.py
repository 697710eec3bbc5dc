"""What a sequence resumes from, and what it leaves behind for those that begin alike.

It knows lengths and pieces; it does not know pools, models or who asks. A piece is what an engine keeps of one block:
of a block of tokens its rows, of a block of a snapshot a share of the state. Only engines look inside; nobody changes
one.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.cache.spec import PoolSpec

Piece = object


def spec_of(layout: KVLayout, block_tokens: int) -> PoolSpec | None:
    """What a prefix pool must know of `layout`; None when nothing of it grows, and so no prefix is kept."""
    if all(part.kind is not PartKind.TOKENS or part.unit_bytes == 0 for part in layout.parts):
        return None
    return PoolSpec.of_layout(layout, block_tokens)


class Reuse:
    """Of one sequence. What it resumes from is read by the engine, what it leaves is written by it.

    Resumed: the first `tokens` tokens, by `blocks`, one piece a block, and `state`, the pieces of the snapshot there.
    With 0 tokens nothing is. Where the KV of what follows was received `state` may be empty: the received one counts.

    Left: `ids`, of which the KV of the first `length` was computed or received; `made`, pieces of the full blocks after
    the first `stored` tokens, which are kept already (in a model with state as far as the last snapshot, but with
    `rows` to the end); `states`, the pieces of each snapshot by length. Complete when `prefill` has returned, or
    `generate` was closed. Nothing is left where `keeps` is False.

    Snapshots are wanted at `stops`, and in the answer at the last multiple of `every` (0: at none). At most `allowed`
    are held at once, and the shortest go first; whoever gave the sequence its room may lower that at any time.
    """

    __slots__ = (
        "allowed",
        "blocks",
        "every",
        "ids",
        "keeps",
        "length",
        "made",
        "rows",
        "state",
        "states",
        "stops",
        "stored",
        "tokens",
    )

    def __init__(
        self,
        tokens: int = 0,
        blocks: Sequence[Piece] = (),
        state: Sequence[Piece] = (),
        *,
        stops: Sequence[int] = (),
        every: int = 0,
        keeps: bool = True,
        stored: int | None = None,
        rows: bool = False,
    ) -> None:
        self.tokens, self.blocks, self.state = tokens, blocks, state
        self.stops, self.every, self.keeps = frozenset(stops), every, keeps
        self.stored, self.rows = tokens if stored is None else stored, rows
        self.allowed = 0
        self.length = 0
        self.ids: Sequence[int] = ()
        self.made: Sequence[Piece] = ()
        self.states: dict[int, Sequence[Piece]] = {}

    def again(self) -> Reuse:
        """For another sequence with the same prompt: it resumes there too, and leaves nothing."""
        return Reuse(self.tokens, self.blocks, self.state, keeps=False)

    def wants(self, length: int, *, answering: bool) -> bool:
        """Whether a snapshot at `length` tokens is wanted."""
        if not self.keeps or self.allowed < 1:
            return False
        return length in self.stops or (answering and self.every > 0 and length % self.every == 0)

    def take(self, length: int, state: Sequence[Piece]) -> None:
        """The snapshot at `length` tokens. In the answer it takes the place of the one before."""
        for old in [old for old in self.states if old not in self.stops]:
            del self.states[old]
        self.states[length] = state
        self.trim()

    def trim(self) -> None:
        """Lets go of snapshots that are not allowed any more."""
        while len(self.states) > self.allowed:
            del self.states[min(self.states)]

    def leave(self, ids: Sequence[int], length: int, made: Sequence[Piece]) -> None:
        """What the sequence leaves, beside `states`."""
        self.ids, self.length, self.made = ids, length, made

    def copied(self) -> None:
        """The sequence has what it resumes from: it is not needed here any more."""
        self.blocks = self.state = ()

    def let_go(self) -> None:
        """Nobody needs what is held here any more."""
        self.copied()
        self.made = self.ids = ()
        self.states = {}


def last_block(spec: PoolSpec, length: int, reuse: Reuse) -> int:
    """Up to which block a sequence of `length` tokens leaves rows, with the snapshots that it has taken."""
    stop = max(reuse.states, default=0) if spec.stateful and not reuse.rows else length
    return min(stop, length) // spec.block_tokens
