"""The default policy at a live gateway: fresh, it decides by the threshold and says what it lacks; then it learns."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

import pytest

from prfaas.testing.grid import THRESHOLD, Grid, two_clusters
from prfaas.testing.noderig import LIMITS, Rig, until

LENGTHS = [9, 45, 60, 240] * 4
"""On both sides of the threshold, each of an octave of its own: what heads learn from."""
SLOW, FAST = [(1, 10**9), (400, 400 * 10**9)], [(1, 10**6), (400, 400 * 10**6)]
"""A second a token and a millisecond, as nodes may say beforehand; the derived engine takes no time."""


def unknown(grid: Grid) -> dict[str, float]:
    """`prfaas_unknown_signals_total` by signal."""
    return {
        sample.labels["signal"]: sample.value
        for family in grid.gateway.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "prfaas_unknown_signals_total"
    }


async def routes(grid: Grid, lengths: list[int]) -> list[str]:
    found = []
    for number, tokens in enumerate(lengths):  # prompts that share nothing, since nodes keep prefixes
        answer = await grid.complete([65 + number] * tokens, max_tokens=2)
        assert answer.status == 200
        found.append(answer.headers["x-prfaas-route"])
    return found


async def test_a_fresh_gateway_decides_by_the_threshold_and_names_what_it_lacks(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, policy="ours") as grid:
        lacking = "unknown=speed:home,speed:far,kv_bytes"
        assert await routes(grid, [THRESHOLD, THRESHOLD + 1]) == [
            f"local; cluster=home; reason=short; {lacking}",
            f"remote; cluster=far; reason=long; {lacking}",
        ]
        assert unknown(grid) == {"speed:home": 2, "speed:far": 2, "kv_bytes": 2}
        assert (await grid.complete([65], max_tokens=2)).headers["x-prfaas-route"].endswith("reason=single")
        await grid.settled()


async def test_what_is_not_known_is_learned(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, policy="ours") as grid:
        said = await routes(grid, LENGTHS)
        assert all("unknown=" in route for route in said[:4])
        await until(lambda: grid.head.info().prefill_ns != [], "the prefill service has learned")
        async with asyncio.timeout(30):  # until its next report
            while "unknown=" in (await routes(grid, [100]))[0]:
                pass
        await grid.settled()


@pytest.mark.parametrize(
    ("home_ns", "far_ns", "tokens", "said"),
    [
        (SLOW, FAST, THRESHOLD, "remote; cluster=far; reason=spare"),
        (FAST, FAST, THRESHOLD, "local; cluster=home; reason=short"),
        (FAST, SLOW, 2 * THRESHOLD, "local; cluster=home; reason=sooner_here"),
        (SLOW, FAST, 2 * THRESHOLD, "remote; cluster=far; reason=long"),
    ],
)
async def test_a_node_that_is_free_and_sooner_gets_the_work(
    rig: Rig, home_ns: list[tuple[int, int]], far_ns: list[tuple[int, int]], tokens: int, said: str
) -> None:
    far = [await rig.node("far-p", "prefill", prefill_ns=far_ns)]
    home = [await rig.node("home-p", "prefill", prefill_ns=home_ns)]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, policy="ours") as grid:
        first, second, answer = await routes(grid, [10, 300, tokens])
        assert first.endswith("unknown=kv_bytes"), "the first two make it known"
        assert second.endswith("unknown=kv_bytes")
        assert answer == said
        await grid.settled()


async def test_an_idle_node_takes_what_waits_elsewhere(rig: Rig) -> None:
    """What waits at home for the only node there is taken as soon as the other cluster has nothing to do."""
    one = replace(LIMITS, max_sequences=1)
    far = [await rig.node("far-p", "prefill", limits=one, prefill_ns=FAST)]
    home = [await rig.node("home-p", "prefill", limits=one, prefill_ns=SLOW)]
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, policy="ours") as grid:
        await routes(grid, [10, 300])
        gates = {node: asyncio.Event() for node in (far[0].identity.name, home[0].identity.name)}
        for node in (far[0], home[0]):
            node.engine.before_chunk = partial(_pass, gates[node.identity.name])
        alone = await decoders[0].complete([67] * 40, max_tokens=5)
        async with AsyncExitStack() as asked:
            first = await asked.enter_async_context(grid.asking([65] * 300, max_tokens=5))
            await until(lambda: far[0].engine.running == 1, "a long one computes far away")
            second = await asked.enter_async_context(grid.asking([66] * 40, max_tokens=5))
            await until(lambda: home[0].engine.running == 1, "a short one at home")
            third = await asked.enter_async_context(grid.asking([67] * 40, max_tokens=5))
            await until(lambda: grid.gateway.in_flight == 3, "another waits at home")
            gates[far[0].identity.name].set()
            assert (await first).headers["x-prfaas-route"] == "remote; cluster=far; reason=long"
            moved = await third
            assert moved.headers["x-prfaas-route"] == "remote; cluster=far; reason=claimed"
            assert moved.text == alone.text
            gates[home[0].identity.name].set()
            assert (await second).headers["x-prfaas-route"] == "local; cluster=home; reason=short"
        await grid.settled()
        assert home[0].engine.seen["prefill"] == 1, "the one that was taken never ran there"


async def _pass(gate: asyncio.Event, _start: int) -> None:
    await gate.wait()
