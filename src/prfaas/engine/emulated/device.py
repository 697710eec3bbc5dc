"""The device of an emulated node: one thing at a time, each for as long as a profile says.

It knows turns and time; it does not know sequences or KV. Prefill chunks of the request that came first go first;
decode steps and chunks take turns. A turn that starts late because the process was busy still ends when it should have,
so that lateness does not add up.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from heapq import heappop, heappush

from prfaas.core.errors import RequestError
from prfaas.runtime.driver import loop_now_ns

GRAIN_NS = 1_000_000
"""What is due within this is done in one go: timers are no finer, and each costs."""


class Device:
    """Taken by `turn`. After `close` whoever waits or asks gets RequestError, 503."""

    def __init__(self) -> None:
        self._free_ns = 0
        self._busy = False
        self._closed = False
        self._decode_next = False
        self._chunks: list[tuple[int, int, asyncio.Future[None]]] = []
        self._steps: list[asyncio.Future[None]] = []
        self._asked = 0
        self._sleeping: set[asyncio.Future[None]] = set()
        self.making = asyncio.Lock()
        """Held while KV is made: by one sequence at a time, else each would take its time between two looks at HTTP."""

    @asynccontextmanager
    async def turn(self, ready_ns: int, order: int | None) -> AsyncGenerator[int, None]:
        """The device, for the body; the time since which it works on this.

        `ready_ns`: since when the work could have been done. `order`: chunks of lower ones first; None: a decode step.
        The body says by `works_until` how long it took.
        """
        await self._take(order)
        try:
            yield max(ready_ns, self._free_ns)
        except BaseException:
            self._free_ns = min(self._free_ns, loop_now_ns())
            raise
        finally:
            self._pass_on(order)

    def works_until(self, ns: int) -> None:
        """The turn that runs ends then, or ended."""
        self._free_ns = ns

    async def until(self, ns: int) -> None:
        """Waits until `ns` on the loop's clock, if that is to come."""
        left_ns = ns - loop_now_ns()
        if left_ns > 0:
            await self.wait(left_ns)

    async def wait(self, for_ns: int | None) -> None:
        """Waits that long; None for ever."""
        self._check()
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        timer = None if for_ns is None else loop.call_later(for_ns / 1e9, _wake, over)
        self._sleeping.add(over)
        try:
            await over
        finally:
            self._sleeping.discard(over)
            if timer is not None:
                timer.cancel()

    def close(self) -> None:
        """Wake all who wait, with an error."""
        self._closed = True
        for over in [*self._sleeping, *self._steps, *(over for _, _, over in self._chunks)]:
            if not over.done():
                over.set_exception(closing())
        self._chunks, self._steps = [], []

    def _check(self) -> None:
        if self._closed:
            raise closing()

    async def _take(self, order: int | None) -> None:
        self._check()
        if not self._busy:
            self._busy = True
            return
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if order is None:
            self._steps.append(mine)
        else:
            self._asked += 1
            heappush(self._chunks, (order, self._asked, mine))
        try:
            await mine
        except asyncio.CancelledError:
            if mine.done() and not mine.cancelled():
                self._pass_on(order)
            raise

    def _pass_on(self, order: int | None) -> None:
        self._decode_next = order is not None
        # Not at once: whoever had it may ask for its next turn first.
        asyncio.get_running_loop().call_soon(self._grant)

    def _grant(self) -> None:
        while (mine := self._next()) is not None:
            if not mine.done():
                mine.set_result(None)
                return
        self._busy = False

    def _next(self) -> asyncio.Future[None] | None:
        if self._steps and (self._decode_next or not self._chunks):
            return self._steps.pop(0)
        return heappop(self._chunks)[2] if self._chunks else None


def closing() -> RequestError:
    """What a sequence gets when its engine is closed."""
    return RequestError("this engine is shutting down", status=503, kind="server_error", code="shutting_down")


def _wake(over: asyncio.Future[None]) -> None:
    if not over.done():
        over.set_result(None)
