"""Room in the engine: sequence slots and KV blocks, taken together and in order of arrival.

It knows owners, slots and the node's KV memory. It does not know what runs. All of a sequence's blocks (prompt and
longest answer) are taken before it starts, so that no running sequence ever waits for another.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.errors import InvariantError, RequestError
from prfaas.engine.node.line import Line
from prfaas.engine.node.prefixes import Prefixes, Wanted
from prfaas.engine.reuse import Reuse


class Room:
    """What `enter` took, `leave` gives back; a prefill gives its slot back before its blocks.

    `kv_blocks`: blocks that the rows of all sequences may take together; `prefixes` has these and some for states.
    """

    def __init__(self, prefixes: Prefixes, kv_blocks: int, max_sequences: int, max_waiting: int) -> None:
        self.prefixes = prefixes
        self._kv_blocks, self._max_sequences = kv_blocks, max_sequences
        self._slots: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._line = Line("KV blocks", max_waiting)

    @property
    def blocks_in_use(self) -> int:
        """Blocks held."""
        return self.prefixes.working_blocks

    @property
    def usage(self) -> float:
        """Share of the blocks that is held, 0 to 1."""
        return self.prefixes.working_blocks / self.prefixes.capacity_blocks

    @property
    def waiting(self) -> int:
        """How many wait to enter."""
        return len(self._line)

    def hold(self, owner: str, prompt: Sequence[int]) -> int:
        """See `Prefixes.hold`; until `enter`, or `leave`."""
        return self.prefixes.hold(owner, prompt)

    def width(self, tokens: int, sequences: int) -> int:
        """How many of `sequences` sequences of `tokens` tokens may run at once in an empty engine, at least one."""
        blocks = max(1, self.prefixes.blocks_for(tokens))
        return max(1, min(sequences, self._max_sequences, self._kv_blocks // blocks))

    async def enter(self, owner: str, wanted: Wanted) -> Reuse:
        """Slots for all its sequences, at most `width`, and blocks for each of them, all at once; what the first one
        resumes from.

        Raises RequestError: 503 at once when they can never fit, with both sizes; 429 when too many wait.
        """
        blocks = self.prefixes.blocks_for(wanted.room_tokens)
        if blocks > self._kv_blocks:
            raise RequestError(
                f"{wanted.room_tokens} tokens take {blocks} KV blocks, this node has {self._kv_blocks}",
                status=503,
                kind="server_error",
                code="kv_blocks_exceeded",
            )
        got: list[Reuse] = []
        await self._line.wait(lambda: self._take(owner, wanted, got, wanted.sequences), lambda: self.leave(owner))
        if len(got) != 1:
            raise InvariantError(f"{owner} got room {len(got)} times")
        return got[0]

    def enter_now(self, owner: str, wanted: Wanted) -> Reuse | None:
        """Blocks without a slot, for what no engine computes: at once, or None, as while others wait. `leave` gives
        them back."""
        if self._line:
            return None
        got: list[Reuse] = []
        return got[0] if self._take(owner, wanted, got, slots=0) else None

    def leave_slot(self, owner: str) -> None:
        """The computation is over, its blocks are still held; what it left can be used."""
        self._slots.pop(owner, None)
        self.prefixes.keep(owner)
        self._line.move()

    def leave(self, owner: str) -> None:
        """Give all back. Harmless when nothing is held."""
        self._slots.pop(owner, None)
        self._rows.pop(owner, None)
        self.prefixes.end(owner)
        self._line.move()

    def validate(self) -> None:
        """Raises InvariantError when the books do not balance."""
        self.prefixes.validate()
        if not self._slots.keys() <= self._rows.keys():
            raise InvariantError(f"slots of {sorted(self._slots)}, blocks of {sorted(self._rows)}")

    def _take(self, owner: str, wanted: Wanted, got: list[Reuse], slots: int) -> bool:
        if sum(self._slots.values()) + slots > self._max_sequences:
            return False
        rows = self.prefixes.rows(wanted)
        if sum(self._rows.values()) + rows > self._kv_blocks:
            return False
        reuse = self.prefixes.begin(owner, wanted)
        if reuse is None:
            return False
        self._slots[owner], self._rows[owner] = slots, rows
        got.append(reuse)
        return True
