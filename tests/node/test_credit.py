"""Landing credit: first come first served, bounded, leased, and never lost."""

from __future__ import annotations

import asyncio

import pytest

from prfaas.core.errors import RequestError
from prfaas.core.ids import TransferId
from prfaas.engine.node.credit import Credits
from prfaas.engine.node.identity import NodeLimits
from prfaas.testing.noderig import Node, Rig, until

A, B, C = TransferId("a.1"), TransferId("b.1"), TransferId("c.1")


async def test_grant_use_release() -> None:
    credits = Credits(100, 10)
    await credits.grant(A, 60, 5)
    assert (credits.taken_bytes, credits.unused) == (60, 1)
    await credits.use(A, 60)
    assert (credits.taken_bytes, credits.unused) == (60, 0)
    credits.give_up(A)
    assert credits.taken_bytes == 60
    credits.release(A)
    credits.release(A)
    assert credits.taken_bytes == 0


async def test_asking_again_renews() -> None:
    credits = Credits(100, 10)
    await credits.grant(A, 60, 0.02)
    await credits.grant(A, 60, 30)
    await asyncio.sleep(0.04)
    assert credits.taken_bytes == 60
    credits.close()


async def test_a_lease_ends() -> None:
    credits = Credits(100, 10)
    await credits.grant(A, 60, 0.02)
    waiting = asyncio.create_task(credits.grant(B, 60, 5))
    await until(lambda: credits.taken_bytes == 60 and waiting.done(), "B after A's lease")
    assert credits.unused == 1
    credits.close()
    assert credits.taken_bytes == 0


async def test_a_used_credit_has_no_lease() -> None:
    credits = Credits(100, 10)
    await credits.grant(A, 60, 0.02)
    await credits.use(A, 60)
    await asyncio.sleep(0.04)
    assert credits.taken_bytes == 60
    credits.release(A)


async def test_nobody_overtakes() -> None:
    credits = Credits(100, 10)
    await credits.use(A, 60)
    big, small = asyncio.create_task(credits.use(B, 80)), asyncio.create_task(credits.use(C, 10))
    await asyncio.sleep(0)
    assert not small.done()
    credits.release(A)
    await asyncio.gather(big, small)
    assert credits.taken_bytes == 90


async def test_a_waiter_that_leaves() -> None:
    credits = Credits(100, 10)
    await credits.use(A, 60)
    big, small = asyncio.create_task(credits.use(B, 80)), asyncio.create_task(credits.use(C, 10))
    await asyncio.sleep(0)
    big.cancel()
    await small
    assert credits.taken_bytes == 70
    # It is let in and leaves in the same turn of the loop: nothing is kept.
    last = asyncio.create_task(credits.use(B, 80))
    await asyncio.sleep(0)
    credits.release(A)
    credits.release(C)
    last.cancel()
    await asyncio.gather(last, return_exceptions=True)
    assert last.cancelled()
    assert credits.taken_bytes == 0
    await credits.use(B, 80)  # and its name is free again
    credits.release(B)


async def test_refusals() -> None:
    credits = Credits(100, 1)
    with pytest.raises(RequestError, match=r"101 bytes, .* has 100") as never:
        await credits.grant(A, 101, 5)
    assert (never.value.status, never.value.code) == (413, "landing_buffer_exceeded")
    await credits.grant(A, 60, 5)
    with pytest.raises(RequestError, match=r"60 bytes .* 40 of 100 are free") as late:
        await credits.grant(B, 60, 0.02)
    assert (late.value.status, late.value.code, late.value.retry_after_s) == (503, "no_landing_credit", 1)
    waiting = asyncio.create_task(credits.grant(B, 60, 5))
    await asyncio.sleep(0)
    with pytest.raises(RequestError) as full:
        await credits.grant(C, 60, 5)
    assert (full.value.status, full.value.code) == (429, "queue_full")
    with pytest.raises(RequestError) as twice:
        await credits.grant(B, 60, 5)
    assert (twice.value.status, twice.value.code) == (409, "duplicate_transfer")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await credits.use(A, 60)
    with pytest.raises(RequestError) as used:
        await credits.use(A, 60)
    assert used.value.code == "duplicate_transfer"
    credits.release(A)


async def test_using_other_bytes_than_granted() -> None:
    credits = Credits(100, 10)
    await credits.grant(A, 60, 5)
    await credits.use(A, 70)
    assert credits.taken_bytes == 70
    credits.release(A)
    assert credits.taken_bytes == 0


@pytest.fixture
async def node(rig: Rig) -> Node:
    return await rig.node("home-1", "decode", node_limits=NodeLimits(landing_buffer_bytes=4000))


async def test_over_http(node: Node) -> None:
    granted = await node.credit("a.1", 101)
    kv_bytes = node.engine.layout.bytes_at(100)
    assert granted.json == {"transfer_id": "a.1", "kv_bytes": kv_bytes, "receiver": "home-1"}
    assert node.held == (0, 1, kv_bytes)
    assert (await node.get("/prfaas/v1/node")).json["transfers_in_use"] == 1
    waiting = asyncio.create_task(node.credit("b.1", 101))
    await until(lambda: len(node.server._credits._line) == 1, "waiting")
    assert (await node.delete("/prfaas/v1/credit/a.1")).json == {}
    assert (await waiting).status == 200
    assert (await node.delete("/prfaas/v1/credit/b.1")).status == 200
    assert (await node.delete("/prfaas/v1/credit/never")).status == 200
    never = await node.credit("c.1", 300)
    assert (never.status, never.code) == (413, "landing_buffer_exceeded")
    assert "4000" in never.message
    short = await node.credit("d.1", 5, lease_ms=30)
    assert short.status == 200  # and its lease ends: the fixture sees it gone
    for wrong in (("", 5, 5), ("x", 0, 5), ("x", 5, 0)):
        assert (await node.credit(*wrong)).status == 400
    assert (await node.post("/prfaas/v1/credit", {"transfer_id": 4})).code == "invalid_json"


async def test_the_asker_hangs_up(node: Node) -> None:
    assert (await node.credit("a.1", 101)).status == 200
    waiting = asyncio.create_task(node.credit("b.1", 101))
    await until(lambda: len(node.server._credits._line) == 1, "waiting")
    waiting.cancel()
    await until(lambda: len(node.server._credits._line) == 0, "gone")
    await node.delete("/prfaas/v1/credit/a.1")


async def test_a_refused_decode_leg_gives_its_credit_up(node: Node) -> None:
    params = {
        "transfer_id": "a.1", "do_remote_prefill": True, "remote": [{"host": "127.0.0.1", "port": 9}], "ticket": "t",
        "prompt_tokens": 9, "prompt_hash": "h",
    }  # fmt: skip
    for prompt, status in (("other", 409), ("x" * 500, 409), ([1, 9999], 400)):
        assert (await node.credit("a.1", 9)).status == 200
        assert node.server._credits.unused == 1
        assert (await node.complete(prompt, kv_transfer_params=params)).status == status
        assert node.server._credits.unused == 0
