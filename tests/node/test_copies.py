"""A prefix that one node keeps is lent to another, which keeps it too; whatever goes wrong, the prompt is computed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import msgspec
import pytest

from prfaas.core.ids import NodeName, TransferId
from prfaas.core.transfer.shards import rank_transfer
from prfaas.engine.node.identity import NodeLimits
from prfaas.testing.noderig import LIMITS, LINK, SECRET, Answer, Node, Pair, Rig, until
from prfaas.wire.control import Address, PrefixRequest, PrefixSource, TransferParams
from prfaas.wire.layout import layout_name
from prfaas.wire.ticket import mint

PROMPT = "".join(chr(97 + (at * 7) % 26) for at in range(200))
LENGTH = 192
"""Of the 201 tokens of `PROMPT`, the last boundary: there it leaves a snapshot."""


@dataclass(slots=True)
class Three:
    """`lender` keeps `PROMPT`, `near` does not and prefills it for `home`."""

    lender: Node
    near: Node
    home: Node

    @property
    def pair(self) -> Pair:
        return Pair(self.near, self.home)

    def request(self, transfer: str, length: int = LENGTH, **other: Any) -> PrefixRequest:
        asked = PrefixRequest(
            transfer_id=transfer,
            node=self.lender.identity.name,
            layout=layout_name(self.lender.engine.layout),
            receiver=self.near.identity.name,
            link=LINK,
            tokens=msgspec.Raw(msgspec.json.encode(self.pair.tokens(PROMPT))),
            length=length,
            deadline_ms=20_000,
        )
        return msgspec.structs.replace(asked, **other)

    def source(self, transfer: str, length: int = LENGTH, **other: Any) -> PrefixSource:
        ticket = mint(
            SECRET.encode(),
            transfer=TransferId(transfer),
            epoch=self.lender.identity.epoch,
            node=self.lender.identity.name,
            receiver=NodeName(self.near.identity.name),
            link=LINK,
            lifetime_s=60,
            now=time.time(),
        )
        remote = [Address(peer.host, peer.port) for peer in self.lender.identity.data]
        made = PrefixSource(transfer, length, LINK, remote, ticket, 20_000)
        return msgspec.structs.replace(made, **other)

    @contextlib.asynccontextmanager
    async def lent(self, transfer: str, **other: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        """A loan that was granted; leaving the block early hangs up."""
        body = msgspec.json.encode(self.request(transfer, **other))
        url = self.lender.listening.url + "/prfaas/v1/prefix"
        async with self.lender.session.post(url, data=body) as response:
            assert response.status == 200, await response.read()
            assert json.loads(await response.content.readline()) == {"state": "lent"}
            yield response

    async def refused(self, **other: Any) -> Answer:
        return await self.lender.post("/prfaas/v1/prefix", None, raw=msgspec.json.encode(self.request("l", **other)))

    async def hand_over(self, transfer: str, source: PrefixSource, prompt: str = PROMPT) -> tuple[Answer, Answer]:
        """Prefill at `near`, which is to fetch first, and decode at `home`."""
        tokens = self.pair.tokens(prompt)
        assert (await self.home.credit(transfer, len(tokens))).status == 200
        params = TransferParams(transfer, True, link=LINK, prompt_tokens=len(tokens), prefix=source)
        prefill = self.near.complete(tokens, max_tokens=1, kv_transfer_params=msgspec.to_builtins(params))
        prefilled, decoded = await asyncio.gather(prefill, self.pair.decode(transfer, prompt, max_tokens=8))
        assert prefilled.status == 200, prefilled.body
        assert decoded.status == 200, decoded.body
        return prefilled, decoded

    async def outcome(self, side: str, outcome: str) -> float:
        node = self.lender if side == "lent" else self.near
        return await node.metric(f'prfaas_prefix_copies_total{{outcome="{outcome}",side="{side}"}}')


OVER_BOTH = pytest.mark.parametrize("three", [False, True], indirect=True, ids=["memory", "tcp"])


@pytest.fixture
async def three(rig: Rig, request: pytest.FixtureRequest) -> Three:
    tcp = getattr(request, "param", False)
    made = Three(
        await rig.node("far-1", "prefill", tcp=tcp),
        await rig.node("near-1", "prefill", tcp=tcp),
        await rig.node("d", "decode", tcp=tcp),
    )
    assert (await made.lender.complete(PROMPT, max_tokens=1)).status == 200
    return made


def cached(answer: Answer) -> int:
    return int(answer.usage["prompt_tokens_details"]["cached_tokens"])


@OVER_BOTH
async def test_a_lent_prefix_is_not_computed_again(three: Three) -> None:
    """Rows, window and state: the answer is that of a node that computed all."""
    alone = await three.home.complete(PROMPT, max_tokens=8)
    async with three.lent("l.1") as response:
        prefilled, decoded = await three.hand_over("t.1", three.source("l.1"))
        assert json.loads(await response.content.readline()) == {"state": "done"}
    assert decoded.text == alone.text
    assert cached(prefilled) == cached(decoded) == LENGTH
    assert three.near.engine.computed == 200 - LENGTH
    assert three.near.engine.adopted == 1
    assert await three.outcome("fetched", "ok") == await three.outcome("lent", "ok") == 1


async def test_what_is_fetched_is_kept_and_lent_again(three: Three, rig: Rig) -> None:
    async with three.lent("l.1"):
        await three.hand_over("t.1", three.source("l.1"))
    third = Three(three.near, await rig.node("third", "prefill"), three.home)
    async with third.lent("l.2"):
        prefilled, _ = await third.hand_over("t.2", third.source("l.2"))
    assert cached(prefilled) == LENGTH
    assert third.near.engine.computed == 200 - LENGTH


@pytest.mark.parametrize("had", [64, 128])
async def test_only_what_is_lacking_crosses(three: Three, had: int) -> None:
    """But for a window that reaches back, whose rows are nowhere alone."""
    await three.near.complete(PROMPT[: had + 1], max_tokens=1)
    before = three.near.engine.computed
    async with three.lent("l.1"):
        prefilled, _ = await three.hand_over("t.1", three.source("l.1"))
    assert cached(prefilled) == LENGTH
    assert three.near.engine.computed - before == 200 - LENGTH
    whole, layout = three.near.engine.layout.bytes_at(LENGTH), three.near.engine.layout
    rows = sum(part.unit_bytes for part in layout.parts if part.kind == "tokens")
    assert three.lender.transport.stats is not None
    moved = await three.near.metric(f'prfaas_kv_bytes_total{{link="{LINK}"}}')
    assert moved == whole - had * rows


async def test_what_is_here_already_is_not_fetched(three: Three) -> None:
    await three.near.complete(PROMPT, max_tokens=1)
    async with three.lent("l.1"):
        await three.hand_over("t.1", three.source("l.1"))
    assert three.near.engine.adopted == 0
    assert await three.outcome("fetched", "held") == 1
    assert await three.outcome("lent", "cancelled") == 1


@pytest.mark.parametrize("length", [64, 176, 200])
async def test_a_prefix_that_is_not_kept_at_that_length_is_gone(three: Three, length: int) -> None:
    answer = await three.refused(length=length)
    assert (answer.status, answer.code) == (404, "prefix_gone")


async def test_what_cannot_be_lent(three: Three, rig: Rig) -> None:
    for change, status, code in (
        ({"layout": "another"}, 409, "layout_mismatch"),
        ({"epoch": 1}, 409, "stale_epoch"),
        ({"length": 202}, 400, "invalid_value"),
        ({"length": 0}, 400, "invalid_value"),
        ({"length": 401, "tokens": msgspec.Raw(json.dumps([65] * 401).encode())}, 400, "invalid_value"),
        ({"transfer_id": ""}, 400, "invalid_value"),
        ({"transfer_id": "l" * 257}, 400, "invalid_value"),
        ({"transfer_id": rank_transfer(TransferId("l"), 1, 2)}, 400, "invalid_value"),
        ({"deadline_ms": 0}, 400, "invalid_value"),
        ({"tokens": msgspec.Raw(b'"text"')}, 400, "invalid_value"),
        ({"tokens": msgspec.Raw(json.dumps([1 << 40] * 200).encode())}, 400, "token_out_of_range"),
    ):
        answer = await three.refused(**change)
        assert (answer.status, answer.code) == (status, code), answer.body
    plain = Three(
        await rig.node("plain", "prefill", node_limits=NodeLimits(prefix_cache=False)), three.near, three.home
    )
    await plain.lender.complete(PROMPT, max_tokens=1)
    assert (await plain.refused()).code == "prefix_gone"
    assert not plain.lender.server.info().copies
    assert three.lender.server.info().copies


async def test_the_same_loan_twice_and_too_many(three: Three) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for number in range(16):
            await stack.enter_async_context(three.lent(f"l.{number}"))
        assert (await three.refused(transfer_id="l.3")).code == "duplicate_transfer"
        assert (await three.refused(transfer_id="l.16")).code == "too_many_loans"


async def test_bad_prefixes_of_a_leg(three: Three) -> None:
    for change in ({"length": 0}, {"remote": []}, {"ticket": ""}, {"transfer_id": "t"}, {"connections": 65}):
        source = three.source("l", **change)
        params = msgspec.to_builtins(TransferParams("t", True, link=LINK, prefix=source))
        answer = await three.near.complete(PROMPT, kv_transfer_params=params)
        assert (answer.status, answer.code) == (400, "invalid_value")


async def test_a_lender_is_pinned_until_the_receiver_has_it(three: Three) -> None:
    """Lent blocks are not evicted for others, and are free to go once the loan is over."""
    room = three.lender.server._room
    assert room is not None
    kept = room.prefixes.prefix_blocks
    async with three.lent("l.1"):
        for number in range(12):
            await three.lender.complete(f"{number}" + PROMPT[::-1], max_tokens=1)
        room.validate()
        prefilled, _ = await three.hand_over("t.1", three.source("l.1"))
    assert cached(prefilled) == LENGTH
    assert kept > 0


@pytest.mark.parametrize(
    "change", [{"ticket": "bad"}, {"length": 256}, {"length": 128}, {"remote": [Address("127.0.0.1", 9)]}]
)
async def test_a_fetch_that_fails_is_no_error(three: Three, change: dict[str, Any]) -> None:
    alone = await three.home.complete(PROMPT, max_tokens=8)
    async with three.lent("l.1"):
        prefilled, decoded = await three.hand_over("t.1", three.source("l.1", **change, deadline_ms=300))
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert three.near.engine.computed == 200


async def test_a_loan_that_never_came_is_waited_for_as_long_as_it_pays(three: Three) -> None:
    alone = await three.home.complete(PROMPT, max_tokens=8)
    prefilled, decoded = await three.hand_over("t.1", three.source("l.none", deadline_ms=30))
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert await three.outcome("fetched", "late") == 1


async def test_wrong_kv_is_not_kept(three: Three) -> None:
    """The lender's tokens are others than it was told: what comes is seen to be wrong, and computed instead."""
    other = three.pair.tokens(PROMPT[::-1])
    await three.lender.complete(other, max_tokens=1)
    alone = await three.home.complete(PROMPT, max_tokens=8)
    async with three.lent("l.1", tokens=msgspec.Raw(json.dumps(other).encode())):
        prefilled, decoded = await three.hand_over("t.1", three.source("l.1"))
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert await three.outcome("fetched", "internal") == 1


async def test_no_room_to_fetch_is_no_wait(rig: Rig) -> None:
    small = replace(LIMITS, kv_blocks=20, max_sequences=2, max_model_len=320)
    near = await rig.node("near-1", "prefill", limits=small)
    three = Three(await rig.node("far-1", "prefill"), near, await rig.node("d", "decode"))
    await three.lender.complete(PROMPT, max_tokens=1)
    hold = asyncio.Event()

    async def wait(_index: int) -> None:
        await hold.wait()

    near.engine.before_token = wait
    busy = asyncio.create_task(near.complete("x" * 150, max_tokens=20))
    await until(lambda: near.server.blocks_in_use > 0, "busy")
    async with three.lent("l.1"):
        handing = asyncio.create_task(three.hand_over("t.1", three.source("l.1")))
        await until(lambda: near.server._room is not None and near.server._room.waiting == 1, "it waits to compute")
        hold.set()
        prefilled, _ = await handing
    assert (await busy).status == 200
    assert cached(prefilled) == 0
    assert await three.outcome("fetched", "no_room") == 1


@OVER_BOTH
async def test_a_prefill_that_is_left_in_mid_copy(three: Three) -> None:
    hold, reached = asyncio.Event(), asyncio.Event()

    async def wait(_length: int) -> None:
        reached.set()
        await hold.wait()

    three.near.engine.before_adopt = wait
    async with three.lent("l.1") as response:
        handing = asyncio.create_task(three.hand_over("t.1", three.source("l.1")))
        await reached.wait()
        handing.cancel()
        assert json.loads(await response.content.readline())["state"] in ("done", "failed")
    await until(lambda: three.near.held == (0, 0, 0), "given back")
    assert await three.outcome("fetched", "cancelled") == 1
    assert three.near.engine.computed == 0


async def test_who_lends_hangs_up_in_mid_copy(three: Three) -> None:
    """The head that asked is gone before the receiver dialled: the receiver is told, and computes."""
    alone = await three.home.complete(PROMPT, max_tokens=8)
    async with three.lent("l.1"):
        pass
    await until(lambda: three.lender.held == (0, 0, 0), "the loan is over")
    prefilled, decoded = await three.hand_over("t.1", three.source("l.1"))
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert await three.outcome("lent", "cancelled") == 1


@OVER_BOTH
async def test_a_lender_that_is_killed_in_mid_copy(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of it is here: nothing of that stays, and the prompt is computed."""
    alone = await three.home.complete(PROMPT, max_tokens=8)
    half_put(three.lender, monkeypatch)
    async with three.lent("l.1"):
        handing = asyncio.create_task(three.hand_over("t.1", three.source("l.1")))
        link = three.near.server.metrics
        await until(lambda: b"prfaas_kv_bytes_total{" in link.text(), "some of it came")
        lender: Any = three.lender.transport
        lender.close_listeners()
        for connection in lender.connections:
            connection.abort()
        prefilled, decoded = await handing
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert three.near.engine.computed == 200
    room = three.near.server._room
    assert room is not None
    assert await three.outcome("fetched", "unreachable") == 1


async def test_a_lender_that_stalls_in_mid_copy(three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = await three.home.complete(PROMPT, max_tokens=8)
    half_put(three.lender, monkeypatch)
    async with three.lent("l.1"):
        prefilled, decoded = await three.hand_over("t.1", three.source("l.1", deadline_ms=200))
    assert decoded.text == alone.text
    assert cached(prefilled) == 0
    assert await three.outcome("fetched", "late") == 1


def half_put(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine puts a few pieces of what is kept, and then nothing more."""
    prefill = node.engine.prefill

    async def half(tokens: Any, sink: Any, reuse: Any = None) -> None:
        left = 5

        class Few:
            def put(self, extent: Any, data: memoryview) -> None:
                nonlocal left
                left -= 1
                if left >= 0:
                    sink.put(extent, data)

        await prefill(tokens, Few(), reuse)
        await asyncio.Event().wait()

    monkeypatch.setattr(node.engine, "prefill", half)


async def test_a_node_that_closes_in_mid_copy(rig: Rig) -> None:
    three = Three(
        await rig.node("far-1", "prefill"), await rig.node("near-1", "prefill"), await rig.node("d", "decode")
    )
    await three.lender.complete(PROMPT, max_tokens=1)
    with contextlib.suppress(aiohttp.ClientError):
        async with three.lent("l.1"):
            await three.lender.server.close()
    assert len(three.lender.server.tasks) == 0
    assert three.lender.server.blocks_in_use == 0
    del rig.nodes["far-1"]
