"""Room in an engine: slots and blocks, and how much memory holds."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import ConfigError
from prfaas.engine.node.capacity import within_memory
from prfaas.engine.node.identity import NodeLimits
from prfaas.engine.node.prefixes import Prefixes, Wanted
from prfaas.engine.node.room import Room
from prfaas.testing.noderig import LIMITS, Rig


async def test_slots_and_blocks_together() -> None:
    room = Room(Prefixes(None, 16, 4), 4, 2, 10)
    await room.enter("a", Wanted(16))
    await room.enter("b", Wanted(16))
    third = asyncio.create_task(room.enter("c", Wanted(32)))
    await asyncio.sleep(0)
    assert (room.waiting, room.blocks_in_use, room.usage) == (1, 2, 0.5)
    room.leave_slot("a")  # its blocks are held on, as while a transfer drains
    await third
    assert room.blocks_in_use == 4
    fourth = asyncio.create_task(room.enter("d", Wanted(16)))
    await asyncio.sleep(0)
    room.leave("b")
    await fourth
    assert room.waiting == 0
    for owner in ("a", "c", "d", "d"):
        room.leave(owner)
    assert room.blocks_in_use == 0
    room.validate()


def test_memory_to_blocks() -> None:
    layout = KVLayout(
        "r", (Part(0, "k", PartKind.TOKENS, (1, 4), "float32"), Part(1, "s", PartKind.STATE, (8,), "float32"))
    )
    limits = replace(LIMITS, max_model_len=10_000, max_sequences=4, kv_blocks=1 << 20)
    found = within_memory(limits, layout, 4 * 32 + 10 * 16 * 16 + 15)
    assert (found.kv_blocks, found.max_model_len) == (10, 160)
    assert within_memory(limits, layout, 1 << 40) == limits
    assert within_memory(replace(limits, kv_blocks=3), layout, 1 << 20).kv_blocks == 3
    with pytest.raises(ConfigError, match="states and windows of 4 sequences take 128"):
        within_memory(limits, layout, 100)
    with pytest.raises(ConfigError, match=r"expected at least 384: 128 .* 256 a block"):
        within_memory(limits, layout, 200)
    stateful = KVLayout("r", layout.parts[1:])
    assert within_memory(limits, stateful, 128) == limits


async def test_a_node_within_its_memory(rig: Rig) -> None:
    node = await rig.node("home-1", "decode", node_limits=NodeLimits(kv_memory_bytes=2200))
    info = (await node.get("/prfaas/v1/node")).json
    assert info["max_model_len"] == 64
    assert (await node.get("/v1/models")).json["data"][0]["max_model_len"] == 64
    answer = await node.complete("a" * 64)
    assert (answer.status, answer.code) == (413, "context_length_exceeded")
    assert (await node.complete("a" * 60, max_tokens=3)).status == 200
