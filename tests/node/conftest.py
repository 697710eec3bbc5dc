"""A rig of nodes for each test of this folder, checked after it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prfaas.testing.bytemodel import write_byte_model
from prfaas.testing.noderig import Pair, Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        made = Rig(write_byte_model(tmp_path / "model"), stack)
        yield made
        await made.settled()


@pytest.fixture
async def pair(rig: Rig) -> Pair:
    return Pair(await rig.node("far-1", "prefill"), await rig.node("home-1", "decode"))
