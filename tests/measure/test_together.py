"""A step's time: only what came while all answers were being made counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from prfaas.core.errors import PeerFailure
from prfaas.measure.ask import Heard
from prfaas.measure.together import step_of, timed


def stream(first: int, step: int, count: int, chunk: int = 1) -> Heard:
    heard = Heard()
    heard.arrivals = [(first + at * step * chunk, 1 + at * chunk) for at in range(count)]
    return heard


def test_one_stream() -> None:
    assert timed([stream(100, 10, 9)]) == (10, 5)


def test_tokens_that_come_several_at_once_count() -> None:
    assert timed([stream(100, 10, 9, chunk=4)]) == (10, 17)


def test_what_came_before_all_had_begun_does_not_count() -> None:
    early = Heard()
    early.arrivals = [(at, at) for at in range(1, 50)] + [(100 + 20 * at, 50 + at) for at in range(8)]
    assert timed([early, stream(100, 20, 8)]) == (20, 29)


def test_no_overlap_is_no_measure() -> None:
    assert timed([stream(0, 1, 9), stream(100, 1, 9)]) is None
    assert timed([stream(0, 1, 9), Heard()]) is None
    assert timed([stream(0, 1, 3)]) is None


class Wire:
    """Answers that a test moves by hand."""

    def __init__(self) -> None:
        self.asked: list[tuple[Heard, Callable[[], None]]] = []
        self.hung_up = 0

    async def hear(self, heard: Heard, moved: Callable[[], None]) -> Heard:
        self.asked.append((heard, moved))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.hung_up += 1
            raise
        return heard

    def arrive(self, at: int, ns: int) -> None:
        heard, moved = self.asked[at]
        heard.arrivals.append((ns, len(heard.arrivals) + 1))
        moved()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_it_hangs_up_when_there_is_enough() -> None:
    wire = Wire()
    task = asyncio.create_task(step_of(2, 8, wire.hear))
    await settle()
    for step in range(20):
        wire.arrive(0, 10 * step)
    await settle()
    assert not task.done()
    for step in range(10):
        wire.arrive(1, 200 + 10 * step)
        wire.arrive(0, 200 + 10 * step)
    assert (await task) == (10, 16)
    assert wire.hung_up == 2


async def test_it_gives_up_when_one_ends_before_the_last_begins() -> None:
    wire = Wire()
    task = asyncio.create_task(step_of(2, 8, wire.hear))
    await settle()
    wire.arrive(0, 1)
    wire.asked[0][0].ended = True
    wire.asked[0][1]()
    assert await task is None
    assert wire.hung_up == 2


async def test_a_failure_is_the_failure() -> None:
    async def hear(heard: Heard, moved: Callable[[], None]) -> Heard:
        raise PeerFailure("gone", "away")

    with pytest.raises(PeerFailure, match="gone: away"):
        await step_of(3, 8, hear)
