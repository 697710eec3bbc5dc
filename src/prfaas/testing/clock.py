"""An asyncio event loop in virtual time: real tasks, real timers, no waiting. For tests of asyncio code without
sleeps."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _NoWait(selectors.DefaultSelector):
    """A selector that reports how long the loop would have slept instead of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("every task waits and no timer is set: a deadlock in virtual time")
        self.skipped_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time starts at 0 and jumps to the next timer whenever nothing else can run."""

    def __init__(self) -> None:
        self._no_wait = _NoWait()
        super().__init__(self._no_wait)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._no_wait.skipped_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time. Raises RuntimeError when everything waits for something that cannot come."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
