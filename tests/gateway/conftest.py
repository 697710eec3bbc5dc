"""A rig of nodes that must be settled after every test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from prfaas.testing.bytemodel import write_byte_model
from prfaas.testing.grid import Grid, two_clusters
from prfaas.testing.noderig import Rig


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with AsyncExitStack() as stack:
        yield Rig(write_byte_model(tmp_path / "model"), stack)


@pytest.fixture
async def grid(rig: Rig) -> AsyncIterator[Grid]:
    far = [await rig.node("far-p", "prefill")]
    home = [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        yield grid
        await grid.settled()
