"""Cleaning up that a cancelled task must see through."""

from __future__ import annotations

import asyncio

import pytest

from prfaas.runtime.tasks import to_its_end


async def test_cleaning_up_goes_on_when_its_task_is_cancelled_again_and_again() -> None:
    steps: list[int] = []
    go_on = asyncio.Event()

    async def clean() -> None:
        for step in range(3):
            await go_on.wait()
            await asyncio.sleep(0)
            steps.append(step)

    cleaning = asyncio.create_task(to_its_end(clean()))
    for _ in range(3):
        await asyncio.sleep(0)
        cleaning.cancel()
    await asyncio.sleep(0.01)
    assert not cleaning.done()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await cleaning
    assert steps == [0, 1, 2]


@pytest.mark.parametrize("cancel", [False, True])
async def test_what_it_raises_is_raised_unless_it_was_cancelled(cancel: bool) -> None:
    async def clean() -> None:
        await asyncio.sleep(0.001)
        raise ValueError("broken")

    cleaning = asyncio.create_task(to_its_end(clean()))
    await asyncio.sleep(0)
    if cancel:
        cleaning.cancel()
    with pytest.raises(asyncio.CancelledError if cancel else ValueError):
        await cleaning


async def test_what_it_returns() -> None:
    async def answer() -> int:
        await asyncio.sleep(0)
        return 42

    assert await to_its_end(answer()) == 42
