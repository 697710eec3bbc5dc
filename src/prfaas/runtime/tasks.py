"""Background tasks that nobody awaits: none is lost, none fails in silence.

It knows asyncio; it does not know what the tasks do. A task that fails unexpectedly is a bug: it is logged, and the
program, which awaits `failure`, ends with it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import structlog

from prfaas.runtime.pauses import keep_pauses_short

log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Tasks:
    """The background tasks of one program or server."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._failed: asyncio.Future[BaseException] | None = None
        self._error: BaseException | None = None

    def __len__(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run `work` until it returns, fails or `close` cancels it."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    async def failure(self) -> BaseException:
        """Waits for the first task that fails unexpectedly; perhaps for ever."""
        if self._error is not None:
            return self._error
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._failed)

    async def close(self) -> None:
        """Cancel what runs and wait for it."""
        while self._tasks:
            running = list(self._tasks)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            self._tasks.difference_update(running)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        log.error("background task failed", task=task.get_name(), exc_info=error)
        if self._error is None:
            self._error = error
            if self._failed is not None and not self._failed.done():
                self._failed.set_result(error)


@asynccontextmanager
async def background() -> AsyncIterator[Callable[[Coroutine[Any, Any, None]], None]]:
    """What is handed to it runs beside the block, and is cancelled at its end. What such work raises is logged: the
    block does not depend on it."""
    running: list[asyncio.Task[None]] = []
    try:
        yield lambda work: running.append(asyncio.get_running_loop().create_task(work))
    finally:
        for task in running:
            task.cancel()
        for ended in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("background work failed", exc_info=ended)


async def to_its_end(work: Awaitable[_T]) -> _T:
    """What `work` returns or raises, however often the waiting task is cancelled meanwhile; then it is cancelled.

    For cleaning up in several steps: who serves a client is cancelled when it leaves, and that may well be while a
    failed write to it is being cleaned up after.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as again:
            cancelled = again
    if cancelled is None:
        return task.result()
    if not task.cancelled():
        task.exception()  # seen
    raise cancelled


async def until_stopped(tasks: Tasks) -> int:
    """Waits for SIGTERM or SIGINT (0), or for a background task's failure (1): a program's exit code.

    The process is one that serves from here on: see `pauses`.
    """
    keep_pauses_short()
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    asked, failed = loop.create_task(stopped.wait()), loop.create_task(tasks.failure())
    try:
        await asyncio.wait({asked, failed}, return_when=asyncio.FIRST_COMPLETED)
        return 0 if stopped.is_set() else 1
    finally:
        for task in (asked, failed):
            task.cancel()
        await asyncio.gather(asked, failed, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
