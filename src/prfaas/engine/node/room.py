"""Room in the engine: sequence slots and KV blocks, taken together and in order of arrival.

It knows owners, slots and `core.cache.pool`. It does not know what runs. All of a sequence's blocks (prompt and longest
answer) are taken before it starts, so that no running sequence ever waits for another.
"""

from __future__ import annotations

from prfaas.core.cache.pool import BlockPool
from prfaas.core.errors import RequestError
from prfaas.engine.node.line import Line


class Room:
    """What `enter` took, `leave` gives back; a prefill gives its slot back before its blocks."""

    def __init__(self, pool: BlockPool, max_sequences: int, max_waiting: int) -> None:
        self._pool, self._max_sequences = pool, max_sequences
        self._slots: dict[str, int] = {}
        self._line = Line("KV blocks", max_waiting)

    @property
    def blocks_in_use(self) -> int:
        """Blocks held."""
        return self._pool.in_use

    @property
    def usage(self) -> float:
        """Share of the blocks that is held, 0 to 1."""
        return self._pool.in_use / self._pool.capacity

    @property
    def waiting(self) -> int:
        """How many wait to enter."""
        return len(self._line)

    def width(self, tokens: int, sequences: int) -> int:
        """How many of `sequences` sequences of `tokens` tokens may run at once in an empty engine, at least one."""
        blocks = max(1, self._pool.blocks_for(tokens))
        return max(1, min(sequences, self._max_sequences, self._pool.capacity // blocks))

    async def enter(self, owner: str, tokens: int, sequences: int = 1) -> None:
        """Slots for `sequences` sequences, at most `width`, and blocks for `tokens` tokens of each, all at once.

        Raises RequestError: 503 at once when they can never fit, with both sizes; 429 when too many wait.
        """
        if not self._pool.can_ever(tokens):
            blocks, capacity = self._pool.blocks_for(tokens), self._pool.capacity
            raise RequestError(
                f"{tokens} tokens take {blocks} KV blocks, this node has {capacity}",
                status=503,
                kind="server_error",
                code="kv_blocks_exceeded",
            )
        await self._line.wait(lambda: self._take(owner, tokens, sequences), lambda: self.leave(owner))

    def leave_slot(self, owner: str) -> None:
        """The computation is over, its blocks are still held."""
        self._slots.pop(owner, None)
        self._line.move()

    def leave(self, owner: str) -> None:
        """Give all back. Harmless when nothing is held."""
        self._slots.pop(owner, None)
        self._pool.give_back(owner)
        self._line.move()

    def _take(self, owner: str, tokens: int, sequences: int) -> bool:
        whole_blocks = self._pool.blocks_for(tokens) * self._pool.block_tokens
        if sum(self._slots.values()) + sequences > self._max_sequences:
            return False
        if not self._pool.take(owner, whole_blocks * sequences):
            return False
        self._slots[owner] = sequences
        return True
