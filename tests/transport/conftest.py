"""A TCP rig whose transports hold nothing when the test is over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from prfaas.testing.conformance import Pair
from prfaas.testing.rigs import StreamRig, tcp_rig


@pytest.fixture
async def rig() -> AsyncIterator[StreamRig]:
    rig = tcp_rig()
    async with asyncio.timeout(60):
        yield rig
        assert await rig.close() == 0


@pytest.fixture
async def pair(rig: StreamRig) -> Pair:
    return await Pair.make(rig)
