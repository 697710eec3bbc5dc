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
        self._slots: set[str] = set()
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

    async def enter(self, owner: str, tokens: int) -> None:
        """A slot and blocks for `tokens` tokens.

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
        await self._line.wait(lambda: self._take(owner, tokens), lambda: self.leave(owner))

    def leave_slot(self, owner: str) -> None:
        """The computation is over, its blocks are still held."""
        self._slots.discard(owner)
        self._line.move()

    def leave(self, owner: str) -> None:
        """Give all back. Harmless when nothing is held."""
        self._slots.discard(owner)
        self._pool.give_back(owner)
        self._line.move()

    def _take(self, owner: str, tokens: int) -> bool:
        if len(self._slots) >= self._max_sequences or not self._pool.take(owner, tokens):
            return False
        self._slots.add(owner)
        return True
