"""The engine thread: loads the model, then gives every job one turn after the other.

It knows threads and one event loop; it does not know what a turn computes. Whatever happens on the thread, every
waiter hears of it: a job's error ends that job, the thread's death ends all.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from prfaas.core.errors import InvariantError

_T = TypeVar("_T")


class Turned(Protocol):
    """What gets turns."""

    def turn(self) -> bool:
        """One step of work; whether that was the last."""

    def stop(self, why: Exception | None) -> None:
        """Make the running or next turn raise soon."""

    def ended(self, error: BaseException | None) -> None:
        """It is off the thread: done (None), or over because of `error`. Called on the event loop, once."""


class Worker:
    """One thread, many jobs: `width` of them take turns, others wait in order of arrival."""

    def __init__(self, name: str, width: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._width = width
        self._inbox: queue.SimpleQueue[Turned | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: list[Turned] = []
        """All that did not end, oldest first: what a dying thread must tell."""
        self._closing: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._setup: Callable[[], None] = lambda: None

    async def start(self, setup: Callable[[], _T]) -> _T:
        """Start the thread with `setup` on it; its result. Raises what `setup` raises, and then the thread ends."""
        ready: asyncio.Future[_T] = self._loop.create_future()

        def first() -> None:
            try:
                result = setup()
            except BaseException as error:
                self._close(InvariantError("the engine did not start"))
                self._post(_settle_error, ready, error)
            else:
                self._post(_settle, ready, result)

        self._setup = first
        self._thread.start()
        return await asyncio.shield(ready)

    def submit(self, job: Turned) -> None:
        """Give `job` turns until it is done. Raises the reason when the thread is closing or dead."""
        with self._lock:
            if self._closing is not None:
                raise self._closing.with_traceback(None)  # the same one each time: it must not grow
            self._jobs.append(job)
        self._inbox.put(job)

    async def close(self, why: Exception) -> None:
        """Stop all jobs with `why` and wait until the thread has ended. Harmless when it has."""
        self._close(why)
        if self._thread.ident is not None:
            await asyncio.shield(self._over)

    def _close(self, why: Exception) -> None:
        with self._lock:
            self._closing = self._closing or why
            for job in self._jobs:
                job.stop(self._closing)
        self._inbox.put(None)

    def _run(self) -> None:
        cause: BaseException | None = None
        try:
            self._setup()
            self._setup = lambda: None  # what it made is not ours to keep
            self._take_turns()
        except BaseException as error:  # nothing may leave a waiter behind
            cause = error
        with self._lock:
            if cause is not None:
                self._closing = InvariantError(f"the engine thread died: {cause!r}")
                self._closing.__cause__ = cause
            left, self._jobs = self._jobs, []
        for job in left:
            self._post(job.ended, self._closing)
        self._post(_settle, self._over, None)

    def _take_turns(self) -> None:
        active: list[Turned] = []
        waiting: list[Turned] = []
        while self._closing is None:
            while not (active and self._inbox.empty()):
                arrived = self._inbox.get()
                if arrived is None:
                    return
                (active if len(active) < self._width else waiting).append(arrived)
                del arrived
            active = [job for job in active if not self._turn(job)]
            while waiting and len(active) < self._width:
                active.append(waiting.pop(0))

    def _turn(self, job: Turned) -> bool:
        """Whether the job is over."""
        error: Exception | None = None
        try:
            if not job.turn():
                return False
        except Exception as raised:
            error = raised
        with self._lock:
            self._jobs.remove(job)
        self._post(job.ended, error)
        error = None  # its traceback holds this frame, which must not hold it
        return True

    def _post(self, call: Callable[..., None], *values: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *values)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _settle_error(future: asyncio.Future[_T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
