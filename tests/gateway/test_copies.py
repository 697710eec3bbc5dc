"""A prefix that the other cluster has is copied to where the prompt is prefilled, or the answer says why not."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from prfaas.cli.ports import free_ports
from prfaas.cluster.offers import misfit
from prfaas.config.units import Endpoint
from prfaas.core.errors import PeerFailure
from prfaas.core.ids import TransferId
from prfaas.core.index.places import Known
from prfaas.engine.node.identity import NodeLimits
from prfaas.gateway.sources import HomeSource
from prfaas.model.blockhash import block_hashes
from prfaas.testing.grid import FAR, HOME, Grid, two_clusters
from prfaas.testing.noderig import LINK, MODEL, ROOT, Answer, Rig, until
from prfaas.wire.control import Address, PrefillRequest, PrefixOffer, PrefixRequest, PrefixSource
from prfaas.wire.layout import layout_name

THRESHOLD = 150
MS = 10**6
SLOW = [(1, 100 * MS), (400, 40_000 * MS)]
"""What nodes say of their prefill: so long that a copy pays, however slow this machine is."""
QUICK = [(1, 1), (400, 400)]


@contextlib.asynccontextmanager
async def copying(rig: Rig, prefill_ns: Any = SLOW, **more: Any) -> AsyncIterator[Grid]:
    """A grid that knows its caches, how long prefills take, and how large KV is."""
    one, other = free_ports(2, set())
    events = {FAR: Endpoint.at("127.0.0.1", one), HOME: Endpoint.at("127.0.0.1", other)}
    far = [await rig.node("far-p", "prefill", events=events[FAR], prefill_ns=prefill_ns)]
    home = [await rig.node("home-p", "prefill", events=events[HOME], prefill_ns=prefill_ns)]
    decoders = [await rig.node("home-d", "decode", events=events[HOME])]
    options = {"policy": "threshold", "threshold": THRESHOLD} | more
    async with two_clusters(rig, far=far, home=home, decoders=decoders, events=events, **options) as grid:
        await until(
            lambda: [known for _, known in grid.home_head.index.places().values()] == [Known.WHOLLY] * 3, "known"
        )
        for length in (20, 60):
            await ask(grid, words(length, 40))
        yield grid
        await grid.settled()


async def ask(grid: Grid, prompt: list[int]) -> Answer:
    answer = await grid.complete(prompt, max_tokens=6)
    assert answer.status == 200, answer.body
    return answer


def words(count: int, seed: int = 0) -> list[int]:
    return [65 + (at * 7 + seed) % 50 for at in range(count)]


async def held(grid: Grid, tokens: list[int], cluster: str, least: int) -> None:
    """The gateway knows that `cluster` can use at least so many of `tokens`."""
    chain = block_hashes(tokens, ROOT)
    await until(lambda: grid.gateway._caches.of(chain).clusters.get(cluster, 0) >= least, "it is known")


async def alone(grid: Grid, prompt: list[int]) -> str:
    """What a node answers that computes all of it."""
    (decoder,) = grid.decoders
    return (await decoder.complete(prompt, max_tokens=6, echo=True, logprobs=1)).text[len(prompt) :]


def count(grid: Grid, outcome: str) -> float:
    value = grid.gateway.metrics.registry.get_sample_value("prfaas_longer_prefixes_total", {"outcome": outcome})
    return value or 0.0


FIRST = words(200)
SECOND = FIRST + words(80, 3)


async def test_what_is_far_is_copied_home(rig: Rig) -> None:
    """The second prompt is short by what the PrfaaS cluster has: it is served at home, and home computes the rest."""
    async with copying(rig) as grid:
        far, home = grid.far_nodes[0].engine, grid.home_nodes[0].engine
        assert "cluster=far; reason=long" in (await ask(grid, FIRST)).headers["x-prfaas-route"]
        await held(grid, FIRST[:-1], FAR, 192)
        before = far.computed, home.computed
        answer = await ask(grid, SECOND)
        assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=short; copy=copy; from=far"
        assert (far.computed, home.computed) == (before[0], before[1] + len(SECOND) - 1 - 192)
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 192
        assert answer.text == await alone(grid, SECOND)
        assert (count(grid, "copy"), count(grid, "lent")) == (1, 1)
        await held(grid, SECOND[:-1], HOME, 256)
        again = await ask(grid, SECOND)
        assert "copy" not in again.headers["x-prfaas-route"]
        assert again.text == answer.text


@pytest.mark.parametrize("policy", ["threshold", "paper"])
async def test_what_is_at_home_is_copied_away(rig: Rig, policy: str) -> None:
    """Over a link in that direction."""
    async with copying(rig, policy=policy, back_bps=10**9) as grid:
        first, second = words(140), words(140) + words(220, 3)
        assert "reason=short" in (await ask(grid, first)).headers["x-prfaas-route"]
        await held(grid, first[:-1], HOME, 128)
        before = grid.far_nodes[0].engine.computed
        answer = await ask(grid, second)
        assert answer.headers["x-prfaas-route"] == "remote; cluster=far; reason=long; copy=copy; from=home"
        assert grid.far_nodes[0].engine.computed - before == len(second) - 1 - 128
        assert answer.text == await alone(grid, second)


async def test_where_no_link_goes_nothing_is_copied(rig: Rig) -> None:
    async with copying(rig) as grid:
        await ask(grid, words(140))
        await held(grid, words(139), HOME, 128)
        before = grid.far_nodes[0].engine.computed
        answer = await ask(grid, words(140) + words(220, 3))
        assert answer.headers["x-prfaas-route"] == "remote; cluster=far; reason=long; copy=no_link; from=home"
        assert grid.far_nodes[0].engine.computed - before == 359
        assert count(grid, "no_link") == 1


async def test_what_is_computed_as_fast_is_computed(rig: Rig) -> None:
    async with copying(rig, prefill_ns=QUICK) as grid:
        await ask(grid, FIRST)
        await held(grid, FIRST[:-1], FAR, 192)
        answer = await ask(grid, SECOND)
        assert "copy=copy_slower; from=far" in answer.headers["x-prfaas-route"]
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 0


async def test_copies_can_be_turned_off(rig: Rig) -> None:
    """Then each cluster's cache is judged alone."""
    async with copying(rig, copies=False) as grid:
        await ask(grid, FIRST)
        await held(grid, FIRST[:-1], FAR, 192)
        answer = await ask(grid, SECOND)
        assert answer.headers["x-prfaas-route"] == "remote; cluster=far; reason=long"


async def test_a_prefix_that_went_meanwhile_is_computed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    async with copying(rig) as grid:
        await ask(grid, FIRST)
        await held(grid, FIRST[:-1], FAR, 192)
        room = grid.far_nodes[0].server._room
        assert room is not None
        monkeypatch.setattr(room.prefixes, "want_loan", lambda tokens: None)
        answer = await ask(grid, SECOND)
        assert "copy=copy; from=far" in answer.headers["x-prfaas-route"]
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert answer.text == await alone(grid, SECOND)
        assert (count(grid, "lent"), count(grid, "prefix_gone")) == (0, 1)


async def test_a_service_that_dies_in_mid_copy(rig: Rig) -> None:
    """The answer comes all the same, and nobody holds anything."""
    async with copying(rig) as grid:
        await ask(grid, FIRST)
        await held(grid, FIRST[:-1], FAR, 192)
        hold, reached = asyncio.Event(), asyncio.Event()

        async def wait(_length: int) -> None:
            reached.set()
            await hold.wait()

        grid.home_nodes[0].engine.before_adopt = wait
        async with grid.asking(SECOND, max_tokens=6) as asking:
            await reached.wait()
            await grid.far_head.stop(abruptly=True)
            hold.set()
            answer = await asking
        assert answer.status == 200
        assert answer.text == await alone(grid, SECOND)
        await grid.far_head.start()
        await grid.known()


async def test_a_client_that_leaves_in_mid_copy(rig: Rig) -> None:
    async with copying(rig) as grid:
        await ask(grid, FIRST)
        await held(grid, FIRST[:-1], FAR, 192)
        reached = asyncio.Event()

        async def wait(_length: int) -> None:
            reached.set()
            await asyncio.Event().wait()

        grid.home_nodes[0].engine.before_adopt = wait
        async with grid.asking(SECOND, max_tokens=6):
            await reached.wait()
        await until(lambda: grid.gateway.in_flight == 0, "given up")


async def lend(grid: Grid, **change: Any) -> dict[str, Any]:
    """The last line that the service answers to a request for a loan."""
    asked = PrefixRequest(
        transfer_id="l.1",
        node="far-p",
        layout=layout_name(grid.far_nodes[0].engine.layout),
        receiver="home-p",
        link=LINK,
        tokens=msgspec.Raw(json.dumps(FIRST).encode()),
        length=192,
        deadline_ms=200,
    )
    body = msgspec.json.encode(msgspec.structs.replace(asked, **change))
    async with grid.far_nodes[0].session.post(grid.service.url + "/prfaas/v1/prefix", data=body) as response:
        assert response.status == 200
        lines = [json.loads(line) async for line in response.content]
    assert [line["state"] for line in lines[:-1]] == ["lent"] * (len(lines) - 1)
    return dict(lines[-1])


async def test_a_service_lends_over_its_own_links_from_its_own_nodes(rig: Rig) -> None:
    async with copying(rig) as grid:
        assert (await lend(grid))["code"] == "prefix_gone"
        await ask(grid, FIRST)
        assert (await lend(grid))["code"] in ("deadline", "lease"), "nobody came"
        assert (await lend(grid, link="home->far"))["code"] == "no_link"
        assert (await lend(grid, node="home-p"))["code"] == "cannot_lend"
        assert (await lend(grid, layout="another"))["code"] == "layout_mismatch"
        for path, body in (
            ("prefix", msgspec.json.encode({"transfer_id": "l.1"})),
            ("prefill/t.1/prefix", msgspec.json.encode(PrefixOffer(None))),
        ):
            async with grid.session.post(f"{grid.service.url}/prfaas/v1/{path}", data=body) as response:
                assert response.status == 401
        url = f"{grid.service.url}/prfaas/v1/prefill/t.1/prefix"
        async with grid.far_nodes[0].session.post(url, data=msgspec.json.encode(PrefixOffer(None))) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (404, "late")


def prefill_request(grid: Grid, **change: Any) -> PrefillRequest:
    """One that waits for a prefix as long as it may."""
    tokens = msgspec.Raw(json.dumps(FIRST).encode())
    layout = layout_name(grid.far_nodes[0].engine.layout)
    asked = PrefillRequest("t.1", "", MODEL, layout, "home-d", LINK, tokens, len(FIRST), 60_000, prefix_tokens=128)
    return msgspec.structs.replace(asked, prefix_ms=50_000, **change)


def offer(**change: Any) -> PrefixSource:
    made = PrefixSource("t.1.prefix", 128, LINK, [Address("127.0.0.1", 1)], "ticket", 40_000)
    return msgspec.structs.replace(made, **change)


async def test_an_offer_that_nobody_waits_for_is_late_at_home_too(rig: Rig) -> None:
    async with copying(rig) as grid:
        with pytest.raises(PeerFailure) as late:
            await HomeSource(grid.head).supply(TransferId("t.1"), offer())
        assert late.value.code == "late"


async def test_a_node_that_does_not_copy_is_offered_nothing(rig: Rig) -> None:
    """It is said before the node is named, so that whoever offers hears of it."""
    far = [await rig.node("far-p", "prefill", node_limits=NodeLimits(prefix_cache=False))]
    async with two_clusters(rig, far=far, home=[], decoders=[]) as grid:
        assert not grid.head.info().copies
        async with contextlib.aclosing(grid.head.prefill(prefill_request(grid))) as updates:
            async for update in updates:
                if update.state == "bound":
                    assert not grid.head.supply(TransferId("t.1"), offer())
                    break
        await grid.settled()


WRONG: dict[str, Any] = {
    "transfer_id": "t.1",
    "link": "l" * 257,
    "ticket": "",
    "remote": [Address("127.0.0.1", 1)] * 257,
    "length": 0,
    "deadline_ms": 1 << 41,
    "connections": 65,
}


@pytest.mark.parametrize("field", WRONG)
async def test_an_offer_that_no_node_would_take_is_refused(rig: Rig, field: str) -> None:
    """By the name of what is wrong; the prefill waits on, and the next offer is taken."""
    async with two_clusters(rig, far=[await rig.node("far-p", "prefill")], home=[], decoders=[]) as grid:
        url, session = f"{grid.service.url}/prfaas/v1/prefill/t.1/prefix", grid.far_nodes[0].session
        async with contextlib.aclosing(grid.head.prefill(prefill_request(grid))) as updates:
            async for update in updates:
                if update.state == "bound":
                    break
            bad = offer(**{field: WRONG[field]})
            async with session.post(url, data=msgspec.json.encode(PrefixOffer(bad))) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], error["param"]) == (400, "invalid_value", "prefix")
                assert error["message"].startswith(f"prefix: {field}: got ")
            with pytest.raises(PeerFailure) as refused:
                await HomeSource(grid.head).supply(TransferId("t.1"), bad)
            assert refused.value.code == "invalid_value"
            async with session.post(url, data=msgspec.json.encode(PrefixOffer(offer()))) as response:
                assert response.status == 200
        await grid.settled()


@pytest.mark.parametrize("at", [Address("", 1), Address("h" * 256, 1), Address("h", 0), Address("h", 65536)])
def test_an_offer_names_places_that_can_be(at: Address) -> None:
    assert misfit("t.1", offer()) == ""
    assert misfit("t.1", offer(remote=[at])).startswith("remote: got ")
