"""A gateway that knows what is cached where: turns of a chat, heads that restart, nodes that have it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from prfaas.cli.ports import free_ports
from prfaas.config.units import Endpoint
from prfaas.core.index.places import Known
from prfaas.core.routing.effects import Decided
from prfaas.testing.grid import FAR, HOME, Grid, two_clusters
from prfaas.testing.noderig import ROOT, Answer, Rig, until

THRESHOLD = 150


@contextlib.asynccontextmanager
async def knowing(rig: Rig, far_nodes: int = 1, **more: Any) -> AsyncIterator[Grid]:
    """A grid whose heads hear their nodes."""
    one, other = free_ports(2, set())
    events = {FAR: Endpoint.at("127.0.0.1", one), HOME: Endpoint.at("127.0.0.1", other)}
    far = [await rig.node(f"far-p{number}", "prefill", events=events[FAR]) for number in range(far_nodes)]
    home = [await rig.node("home-p", "prefill", events=events[HOME])]
    decoders = [await rig.node("home-d", "decode", events=events[HOME])]
    async with two_clusters(
        rig, far=far, home=home, decoders=decoders, events=events, threshold=THRESHOLD, **more
    ) as grid:
        await known(grid, far_nodes + 2)
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
    from prfaas.model.blockhash import block_hashes

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
