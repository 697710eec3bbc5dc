"""Our follower of KV events and vLLM's own publisher: gaps that it replays, and ones that it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest
from tests.cluster.test_kvfollow import Head
from tests.freeports import free_endpoint
from tests.vllm.pair import PYTHON, ROOT

from prfaas.core.index.places import Known

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


class Publisher:
    """It, as a process. `published` messages so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self.published = process, 0

    async def do(self, what: str, number: int = 0) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what} {number}\n".encode())
        assert await self._process.stdout.readline() == b"published\n"
        self.published += 1


@contextlib.asynccontextmanager
async def pair(steps: int) -> AsyncIterator[tuple[Publisher, Head]]:
    replay = free_endpoint()
    head = Head(replay, ours=False)
    process = await asyncio.create_subprocess_exec(
        *(PYTHON, "-m", "tests.vllm.publisher", head.at, replay, str(steps)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"up\n"
        publisher = Publisher(process)
        async with asyncio.timeout(60):
            while not head.heard:  # what it publishes before it is connected, it drops, and replays
                await publisher.do("store", 1)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await head.until(lambda: head.heard > 0)
        yield publisher, head
    finally:
        process.stdin.close()
        await process.wait()
        await head.close()


async def test_a_gap_is_replayed() -> None:
    async with pair(1000) as (publisher, head):
        await head.until(lambda: head.known() is Known.WHOLLY and head.usable(1) == 2)
        await publisher.do("store", 2)
        head.lost = {publisher.published, publisher.published + 1}
        await publisher.do("remove", 2)
        await publisher.do("store", 3)
        await publisher.do("store", 4)
        await head.until(lambda: head.usable(4) == 2 and head.known() is Known.WHOLLY)
        assert [head.usable(number) for number in (1, 2, 3, 4)] == [2, 1, 2, 2]


async def test_a_gap_that_is_gone_is_unknown_until_it_clears() -> None:
    async with pair(2) as (publisher, head):
        await publisher.do("store", 2)
        await head.until(lambda: head.usable(2) == 2)
        head.lost = set(range(publisher.published, publisher.published + 5))
        for number in range(3, 9):
            await publisher.do("store", number)
        await head.until(lambda: head.usable(8) == 2 and head.known() is Known.PARTLY)
        assert [head.usable(number) for number in range(1, 9)] == [0, 0, 0, 0, 0, 0, 2, 2]
        await publisher.do("clear")
        await head.until(lambda: head.known() is Known.WHOLLY)
        assert head.index.blocks == 0
