"""A gateway that knows what is cached where: turns of a chat, heads that restart, nodes that have it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Literal

import pytest

from prfaas.cli.ports import free_ports
from prfaas.config.units import Endpoint
from prfaas.core.ids import Epoch, LinkName, NodeName
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place
from prfaas.core.routing.effects import Decided
from prfaas.core.routing.placement import choose_decoder
from prfaas.core.routing.view import DecodeSeen, Source, View
from prfaas.gateway.caches import Caches
from prfaas.model.blockhash import block_hashes
from prfaas.testing.grid import FAR, HOME, Grid, two_clusters
from prfaas.testing.noderig import LINK, ROOT, Answer, Rig, until
from prfaas.testing.restarts import begin, end

THRESHOLD = 150


@contextlib.asynccontextmanager
async def knowing(rig: Rig, far_nodes: int = 1, decode_nodes: int = 1, **more: Any) -> AsyncIterator[Grid]:
    """A grid whose heads hear their nodes."""
    one, other = free_ports(2, set())
    events = {FAR: Endpoint.at("127.0.0.1", one), HOME: Endpoint.at("127.0.0.1", other)}
    far = [await rig.node(f"far-p{number}", "prefill", events=events[FAR]) for number in range(far_nodes)]
    home = [await rig.node("home-p", "prefill", events=events[HOME])]
    names = ["home-d", *(f"home-d{number}" for number in range(1, decode_nodes))]
    decoders = [await rig.node(name, "decode", events=events[HOME]) for name in names]
    async with two_clusters(
        rig, far=far, home=home, decoders=decoders, events=events, threshold=THRESHOLD, **more
    ) as grid:
        await known(grid, far_nodes + 1 + decode_nodes)
        yield grid
        await grid.settled()


async def known(grid: Grid, places: int = 3) -> None:
    await until(
        lambda: [known for _, known in grid.home_head.index.places().values()] == [Known.WHOLLY] * places,
        "all caches are known",
    )


@pytest.fixture
async def decisions(monkeypatch: pytest.MonkeyPatch) -> list[Decided]:
    """What the gateway decided, in order."""
    found: list[Decided] = []
    from prfaas.gateway.legs import Legs

    perform = Legs.perform

    def noted(self: Legs, now_ns: int, effect: Any) -> None:
        if isinstance(effect, Decided):
            found.append(effect)
        perform(self, now_ns, effect)

    monkeypatch.setattr(Legs, "perform", noted)
    return found


async def ask(grid: Grid, prompt: list[int], max_tokens: int = 2) -> Answer:
    answer = await grid.complete(prompt, max_tokens=max_tokens)
    assert answer.status == 200, answer.body
    return answer


def words(count: int, seed: int = 0) -> list[int]:
    return [65 + (at * 7 + seed) % 50 for at in range(count)]


async def held(grid: Grid, tokens: list[int], cluster: str, least: int) -> None:
    """The gateway knows that `cluster` can use at least so many of `tokens`."""
    chain = block_hashes(tokens, ROOT)
    await until(lambda: grid.gateway._caches.of(chain).clusters.get(cluster, 0) >= least, "it is known")


@pytest.mark.parametrize("policy", ["threshold", "ours"])
async def test_a_long_second_turn_is_short(rig: Rig, decisions: list[Decided], policy: str) -> None:
    """What is left of it to compute decides, not its length."""
    async with knowing(rig, policy=policy) as grid:
        first = words(140)
        await ask(grid, first)
        await held(grid, first[:-1], HOME, 128)
        answer = await ask(grid, first + words(130, 3))
        one, two = decisions
        assert (one.cached, one.reason, one.tokens, one.cluster) == (0, "short", 140, HOME)
        assert (two.cached, two.reason, two.tokens, two.cluster) == (128, "short", 270, HOME)
        assert two.tokens - two.cached < THRESHOLD < two.tokens
        assert answer.headers["x-prfaas-route"].startswith("local; cluster=home; reason=short")
        assert not [signal for decided in decisions for signal in decided.unknown if signal.startswith("cache")]


async def test_what_a_prefill_service_has_is_known_at_home(rig: Rig, decisions: list[Decided]) -> None:
    async with knowing(rig) as grid:
        prompt = words(200)
        await ask(grid, prompt)
        await held(grid, prompt[:-1], FAR, 192)
        await ask(grid, prompt + words(60))
        assert [(one.reason, one.cached) for one in decisions] == [("long", 0), ("long", 192)]


@pytest.mark.slow
async def test_heads_that_restart_know_nothing_and_then_all_again(rig: Rig, decisions: list[Decided]) -> None:
    async with knowing(rig) as grid:
        prompt = words(200)
        await ask(grid, prompt)
        await held(grid, prompt[:-1], FAR, 192)
        await grid.far_head.stop()
        await until(lambda: grid.gateway.sees(FAR) == 0, "far is missed")
        await grid.far_head.start()
        await grid.known()
        await known(grid)
        await held(grid, prompt[:-1], FAR, 192)
        await grid.home_head.stop()
        await grid.home_head.start()
        await grid.known()
        await known(grid)
        await held(grid, prompt[:-1], FAR, 192)
        await ask(grid, prompt)
        assert (decisions[-1].reason, decisions[-1].cached) == ("long", 192)


async def test_what_is_not_known_is_told_and_counts_as_nothing(rig: Rig, decisions: list[Decided]) -> None:
    async with knowing(rig, policy="ours") as grid:
        prompt = words(200)
        await ask(grid, prompt)
        await held(grid, prompt[:-1], FAR, 192)
        for place in list(grid.home_head.index.places()):
            if place.cluster == FAR:
                grid.home_head.index.mark(place, Known.UNKNOWN)
        answer = await ask(grid, prompt)
        assert "cache:far" in answer.headers["x-prfaas-route"]
        assert decisions[-1].cached == 0


async def test_the_node_that_has_it_gets_it(rig: Rig, decisions: list[Decided]) -> None:
    """Of several equal ones, and so what was expected is what is computed."""
    async with knowing(rig, far_nodes=3) as grid:
        for number in range(4):
            prompt = words(200, number)
            await ask(grid, prompt)
            await held(grid, prompt[:-1], FAR, 192)
            before = sum(node.engine.computed for node in grid.far_nodes)
            await ask(grid, prompt)
            assert decisions[-1].cached == 192
            assert sum(node.engine.computed for node in grid.far_nodes) - before == 199 - 192


def decoders_hold(grid: Grid, tokens: list[int]) -> dict[str, int]:
    """What the gateway knows of its decode nodes."""
    held = grid.gateway._caches.of(block_hashes(tokens, ROOT)).decoders
    return {str(node): tokens for node, tokens in held.items() if tokens}


async def computed_by(grid: Grid, at: int, prompt: list[int]) -> None:
    """Decode node `at` computed it, alone, and the gateway knows."""
    node = grid.decoders[at]
    assert (await node.complete(prompt, max_tokens=2)).status == 200
    await until(lambda: decoders_hold(grid, prompt).get(node.identity.name, 0) >= 192, "it is known what it holds")


async def test_a_decode_node_that_holds_it_computes_the_rest(rig: Rig, decisions: list[Decided]) -> None:
    """Nothing is prefilled elsewhere, nothing crosses; the answer is that of a node that is alone."""
    async with knowing(rig, decode_nodes=2, remainder=64) as grid:
        prompt, first = words(200), "home-d1"
        await computed_by(grid, 1, prompt)
        assert decoders_hold(grid, prompt) == {first: 192}
        prefills = [sum(node.engine.computed for node in nodes) for nodes in (grid.far_nodes, grid.home_nodes)]
        decoded = {node.identity.name: node.engine.computed for node in grid.decoders}
        more = prompt + words(50, 3)
        answer = await ask(grid, more, max_tokens=5)
        last = decisions[-1]
        assert (last.reason, last.route, last.node, last.cluster, last.cached) == ("held", "local", first, HOME, 192)
        assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=held"
        assert answer.usage["prompt_tokens_details"]["cached_tokens"] == 192
        assert [sum(node.engine.computed for node in nodes) for nodes in (grid.far_nodes, grid.home_nodes)] == prefills
        decoded[first] += 250 - 1 - 192
        assert {node.identity.name: node.engine.computed for node in grid.decoders} == decoded
        alone = await rig.node("alone", "decode")
        assert (await alone.complete(more, max_tokens=5)).text == answer.text
        longer = prompt + words(66, 5)
        await ask(grid, longer)
        assert (decisions[-1].reason, decisions[-1].cached) == ("long", 0), "74 are left, and 64 are few"


async def test_what_a_decode_node_holds_no_more_is_computed_and_right(rig: Rig, decisions: list[Decided]) -> None:
    """What is expected of a node may be wrong by the time it begins: that costs time, and no more than is allowed."""
    async with knowing(rig, remainder=64, whole_limit=230) as grid:
        said, index = words(230), grid.home_head.index
        (place,) = (place for place in index.places() if place.node == "home-d")
        index.stored(place, block_hashes(said[:192], ROOT), None)
        before = grid.decoders[0].engine.computed
        answer = await ask(grid, said)
        assert (decisions[-1].reason, decisions[-1].cached) == ("held", 192)
        assert grid.decoders[0].engine.computed - before == 229
        assert answer.usage.get("prompt_tokens_details") in (None, {"cached_tokens": 0})
        index.stored(place, block_hashes(said[:192], ROOT), None)
        await ask(grid, [*said, 66])
        assert decisions[-1].reason == "long", "more than a decode node may compute whole"


def test_a_node_of_several_ranks_holds_what_each_of_them_does() -> None:
    """It gives a request to any of them."""
    index, chain = PrefixIndex(), block_hashes(words(256), ROOT)
    view = View((Source(FAR, LINK, False), Source(HOME, LinkName("home->home"), True)))
    view.decoders[NodeName("d")] = DecodeSeen(NodeName("d"), True, 0, 1000)
    places = [Place(HOME, NodeName("d"), rank) for rank in (0, 1)]
    caches = Caches(index, ROOT, view)
    for place in places:
        index.open(place, Epoch(1))
        assert caches.of(chain).decoders == {}
    index.stored(places[0], chain, None)
    assert caches.of(chain).decoders == {}
    index.stored(places[1], chain[:3], None)
    assert caches.of(chain).decoders == caches.of(chain).rows == {"d": 192}


def test_rows_from_which_nothing_can_go_on_need_not_cross_all_the_same() -> None:
    """A node of a hybrid model keeps what landed, without a snapshot of its state."""
    index, chain = PrefixIndex(), block_hashes(words(256), ROOT)
    view = View((Source(FAR, LINK, False), Source(HOME, LinkName("home->home"), True)))
    for name in ("d1", "d2"):
        view.decoders[NodeName(name)] = DecodeSeen(NodeName(name), True, 0, 1000)
        index.open(Place(HOME, NodeName(name), 0), Epoch(1), {1: 1})
    index.stored(Place(HOME, NodeName("d2"), 0), chain[:3], None)
    known = Caches(index, ROOT, view).of(chain)
    assert (known.decoders, known.rows) == ({"d2": 0}, {"d2": 192})
    assert choose_decoder(view, 257, frozenset(), known.rows) == "d2"


async def test_a_client_that_leaves_while_the_rest_is_computed(rig: Rig, decisions: list[Decided]) -> None:
    async with knowing(rig, remainder=64) as grid:
        prompt = words(200)
        await computed_by(grid, 0, prompt)
        begun, engine = asyncio.Event(), grid.decoders[0].engine

        async def stuck(index: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        engine.before_token = stuck
        async with grid.asking(prompt + words(20)):
            await begun.wait()
            assert [one.reason for one in decisions] == ["held"]
            assert grid.decoders[0].held[0] > 0
        await grid.settled()
        assert sum(decoders_hold(grid, prompt).values()) == 192, "what it held it holds"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["far", "home", "decoder"])
async def test_a_node_that_restarts_holds_nothing_of_what_it_held(
    rig: Rig, decisions: list[Decided], which: Literal["far", "home", "decoder"]
) -> None:
    async with knowing(rig, remainder=64) as grid:
        long, short = words(200), words(140, 9)
        for prompt, cluster in ((long, FAR), (short, HOME)):
            await ask(grid, prompt)
            await held(grid, prompt[:-1], cluster, 128)
        await computed_by(grid, 0, long)
        await end(grid, which)
        await begin(grid, which)
        await grid.known()
        holds = {
            "far": lambda: grid.gateway._caches.of(block_hashes(long[:-1], ROOT)).clusters.get(FAR, 0),
            "home": lambda: grid.gateway._caches.of(block_hashes(short[:-1], ROOT)).clusters.get(HOME, 0),
            "decoder": lambda: sum(decoders_hold(grid, long).values()),
        }
        await until(lambda: holds[which]() == 0, "nothing of it counts")
        await known(grid)
        assert {name: bool(count()) for name, count in holds.items()} == {name: name != which for name in holds}
        await ask(grid, long)
        assert (decisions[-1].reason == "held") == (which != "decoder")
        assert not decisions[-1].unknown


@pytest.mark.slow
async def test_a_head_that_is_silent_is_unknown_and_then_known_again(rig: Rig, decisions: list[Decided]) -> None:
    """The far head is away, and its nodes go on: what they have is not counted on until it says so."""
    async with knowing(rig, policy="ours", stale_s=0.3) as grid:
        prompt = words(200)
        await ask(grid, prompt)
        await held(grid, prompt[:-1], FAR, 192)
        await grid.far_head.stop()
        chain = block_hashes(prompt[:-1], ROOT)
        await until(lambda: FAR in grid.gateway._caches.of(chain).unknown, "far is not known")
        assert grid.gateway._caches.of(chain).clusters.get(FAR, 0) == 0
        await grid.far_head.start()
        await grid.known()
        await held(grid, prompt[:-1], FAR, 192)
        assert FAR not in grid.gateway._caches.of(chain).unknown
        await ask(grid, prompt)
        assert decisions[-1].cached == 192


async def test_a_cache_that_is_known_partly_counts_and_more_may_be_there(rig: Rig, decisions: list[Decided]) -> None:
    async with knowing(rig, policy="ours") as grid:
        prompt = words(200)
        await ask(grid, prompt)
        await held(grid, prompt[:-1], FAR, 192)
        for place in list(grid.home_head.index.places()):
            if place.cluster == FAR:
                grid.home_head.index.mark(place, Known.PARTLY)
        answer = await ask(grid, prompt)
        assert "cache:far" in answer.headers["x-prfaas-route"]
        assert decisions[-1].cached == 192
