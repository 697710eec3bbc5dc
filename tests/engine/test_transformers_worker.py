"""Turns on the engine thread, with jobs of no model."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from prfaas.core.errors import InvariantError, LocalError
from prfaas.engine.transformers.worker import Worker

TIMEOUT_S = 30


class Counted:
    """Takes `turns` turns, logging its name; may raise in one."""

    def __init__(self, name: str, turns: int, log: list[str], act: Callable[[], None] = lambda: None) -> None:
        self.name, self.left, self.log, self.act = name, turns, log, act
        self.why: Exception | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def turn(self) -> bool:
        if self.why is not None:
            raise self.why
        self.log.append(self.name)
        self.act()
        self.left -= 1
        return self.left == 0

    def stop(self, why: Exception | None) -> None:
        self.why = why

    def ended(self, error: BaseException | None) -> None:
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


async def held(worker: Worker, log: list[str]) -> threading.Event:
    """Holds the thread in job "gate" until the event is set, so that what is submitted now starts together."""
    inside, go = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def wait() -> None:
        loop.call_soon_threadsafe(inside.set)
        assert go.wait(TIMEOUT_S)

    worker.submit(Counted("gate", 1, log, wait))
    await asyncio.wait_for(inside.wait(), TIMEOUT_S)
    return go


@pytest.fixture
async def log() -> list[str]:
    return []


async def started(width: int) -> Worker:
    worker = Worker("test", width)
    assert await worker.start(lambda: threading.current_thread().name) == "test"
    return worker


async def test_jobs_take_turns(log: list[str]) -> None:
    worker = await started(4)
    go = await held(worker, log)
    jobs = [Counted("a", 4, log), Counted("b", 2, log), Counted("c", 1, log)]
    for job in jobs:
        worker.submit(job)
    go.set()
    await asyncio.gather(*(job.over for job in jobs))
    assert "".join(log[1:]) == "abcabaa"
    await worker.close(LocalError("done"))


async def test_more_than_width_wait_in_order(log: list[str]) -> None:
    worker = await started(2)
    go = await held(worker, log)
    jobs = [Counted(name, 2, log) for name in "abcd"]
    for job in jobs:
        worker.submit(job)
    go.set()
    await asyncio.gather(*(job.over for job in jobs))
    assert "".join(log[1:]) == "abab" + "cdcd"
    await worker.close(LocalError("done"))


async def test_one_jobs_error_is_its_own(log: list[str]) -> None:
    worker = await started(2)

    def fails() -> None:
        raise ValueError("mine")

    bad, good = Counted("bad", 1, log, fails), Counted("good", 3, log)
    worker.submit(bad)
    worker.submit(good)
    with pytest.raises(ValueError, match="mine"):
        await bad.over
    await good.over
    await worker.close(LocalError("done"))


async def test_death_ends_all_and_refuses_more(log: list[str]) -> None:
    worker = await started(1)
    go = await held(worker, log)

    def dies() -> None:
        raise KeyboardInterrupt

    jobs = [Counted("a", 2, log, dies), Counted("b", 2, log)]
    for job in jobs:
        worker.submit(job)
    go.set()
    for job in jobs:
        with pytest.raises(InvariantError, match="KeyboardInterrupt"):
            await asyncio.wait_for(job.over, TIMEOUT_S)
    with pytest.raises(InvariantError, match="KeyboardInterrupt"):
        worker.submit(Counted("c", 1, log))
    await asyncio.wait_for(worker.close(LocalError("done")), TIMEOUT_S)


async def test_close_ends_active_waiting_and_unseen_jobs(log: list[str]) -> None:
    worker = await started(1)
    go = await held(worker, log)
    jobs = [Counted(name, 1_000_000_000, log) for name in "abc"]
    for job in jobs:
        worker.submit(job)
    closing = asyncio.create_task(worker.close(LocalError("closing")))
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait_for(closing, TIMEOUT_S)
    for job in jobs:
        with pytest.raises(LocalError, match="closing"):
            await job.over
    assert not [thread for thread in threading.enumerate() if thread.name == "test"]


async def test_a_setup_that_fails_is_told_and_ends_the_thread() -> None:
    worker = Worker("test", 1)

    def fails() -> None:
        raise OSError("no model")

    with pytest.raises(OSError, match="no model"):
        await worker.start(fails)
    await asyncio.wait_for(worker.close(LocalError("done")), TIMEOUT_S)


async def test_closing_what_never_started_returns() -> None:
    await Worker("test", 1).close(LocalError("done"))
