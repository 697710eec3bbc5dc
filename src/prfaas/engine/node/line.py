"""A line: those who wait for room, first come first served, in bounds.

It knows who is next; it does not know what room is. Whoever gives something back calls `move`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from prfaas.core.errors import RequestError


@dataclass(slots=True, eq=False)
class _Waiter:
    take: Callable[[], bool]
    turn: asyncio.Future[None]


class Line:
    """Waiters of one resource. `what` names it in refusals."""

    def __init__(self, what: str, max_waiting: int) -> None:
        self._what, self._max_waiting = what, max_waiting
        self._waiters: deque[_Waiter] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, take: Callable[[], bool], undo: Callable[[], None]) -> None:
        """Returns once `take` has succeeded; nobody overtakes. `undo` gives back what a cancelled waiter just got.

        Raises RequestError, 429, when the line is full.
        """
        if not self._waiters and take():
            return
        if len(self._waiters) >= self._max_waiting:
            said = f"{len(self._waiters)} requests wait for {self._what} already"
            raise RequestError(said, status=429, kind="rate_limit_error", code="queue_full", retry_after_s=1)
        waiter = _Waiter(take, asyncio.get_running_loop().create_future())
        self._waiters.append(waiter)
        try:
            await waiter.turn
        except asyncio.CancelledError:
            if waiter.turn.done() and not waiter.turn.cancelled():
                undo()
            else:
                self._waiters.remove(waiter)
            self.move()
            raise

    def move(self) -> None:
        """Let in whoever is next, as long as there is room."""
        while self._waiters:
            waiter = self._waiters[0]
            if waiter.turn.cancelled():  # on its way out; its place is not for others to hold
                break
            if not waiter.take():
                break
            self._waiters.popleft()
            waiter.turn.set_result(None)
