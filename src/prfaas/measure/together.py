"""A decode step, timed: several answers at once, and the time between tokens while all of them are being made.

It knows arrivals of tokens; it does not know what is asked of whom, or why. The time begins with the first token of the
answer that begins last, so that no prefill is in it, and ends when each has enough tokens more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Coroutine, Sequence
from statistics import median
from typing import Any

from prfaas.core.errors import RemoteError
from prfaas.measure.ask import Heard

FEW_STEPS = 4
"""Answers that were made together for fewer steps than this were not measured."""

Hear = Callable[[Heard, Callable[[], None]], Coroutine[Any, Any, Heard]]


async def step_of(count: int, steps: int, hear: Hear) -> tuple[int, int] | None:
    """ns a step of `count` answers, and how many tokens they had by the middle of it. None: they did not all overlap.

    `hear(heard, moved)` asks for one. When each has made `steps` tokens all are hung up on. Raises RemoteError.
    """
    together = _Together([Heard() for _ in range(count)], steps)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hear(heard, together.moved.set)) for heard in together.streams]
            await together.over()
            for task in tasks:
                task.cancel()
    except* RemoteError as errors:
        raise _first(errors) from None
    return timed(together.streams)


def timed(streams: Sequence[Heard]) -> tuple[int, int] | None:
    """See `step_of`."""
    begin_ns = _begin_ns(streams)
    if begin_ns is None:
        return None
    end_ns = min(heard.arrivals[-1][0] for heard in streams)
    each = []
    for heard in streams:
        within = [one for one in heard.arrivals if begin_ns <= one[0] <= end_ns]
        if len(within) < 2 or within[-1][1] - within[0][1] < FEW_STEPS:
            return None
        (first_ns, first), (last_ns, last) = within[0], within[-1]
        each.append(((last_ns - first_ns) / (last - first), (first + last) / 2))
    return round(median(ns for ns, _ in each)), round(median(tokens for _, tokens in each))


class _Together:
    """Answers under way. `moved` is set when one of them has moved on."""

    def __init__(self, streams: Sequence[Heard], steps: int) -> None:
        self.streams, self._steps = streams, steps
        self.moved = asyncio.Event()
        self._base: list[int] | None = None

    async def over(self) -> None:
        """Returns when all have enough steps, or when one has ended."""
        while not (self._enough() or any(heard.ended for heard in self.streams)):
            await self.moved.wait()
            self.moved.clear()

    def _enough(self) -> bool:
        if self._base is None:
            begin_ns = _begin_ns(self.streams)
            if begin_ns is None:
                return False
            self._base = [
                heard.arrivals[bisect_right(heard.arrivals, begin_ns, key=lambda one: one[0]) - 1][1]
                for heard in self.streams
            ]
        counts = (heard.arrivals[-1][1] for heard in self.streams)
        return all(count - base > self._steps for count, base in zip(counts, self._base, strict=True))


def _begin_ns(streams: Sequence[Heard]) -> int | None:
    """Since when all are being made."""
    begin_ns = 0
    for heard in streams:
        if heard.first_ns is None:
            return None
        begin_ns = max(begin_ns, heard.first_ns)
    return begin_ns


def _first(errors: BaseExceptionGroup[RemoteError]) -> RemoteError:
    one: BaseException = errors
    while isinstance(one, BaseExceptionGroup):
        one = one.exceptions[0]
    assert isinstance(one, RemoteError)
    return one
