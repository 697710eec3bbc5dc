"""Every transport passes the same suite, and holds nothing afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from prfaas.testing.clock import run_virtual
from prfaas.testing.conformance import CHECKS, Rig, an_engine_thread_may_put
from prfaas.testing.rigs import StreamRig, memory_rig, tcp_rig

Check = Callable[[Rig], Awaitable[None]]


async def run(make: Callable[[], StreamRig], check: Check) -> None:
    rig = make()
    async with asyncio.timeout(30):
        await check(rig)
    assert await rig.close() == 0


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_tcp(check: Check) -> None:
    await run(tcp_rig, check)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_tcp_on_uvloop(check: Check) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(tcp_rig, check))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory(check: Check) -> None:
    # A thread runs in real time, whatever the loop's clock says.
    start = asyncio.run if check is an_engine_thread_may_put else run_virtual
    start(run(memory_rig, check))
