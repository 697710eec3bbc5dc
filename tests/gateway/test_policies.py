"""The default policy at a live gateway: fresh, it decides by the threshold and says what it lacks; then it learns."""

from __future__ import annotations

import asyncio

import pytest

from prfaas.testing.grid import THRESHOLD, Grid, two_clusters
from prfaas.testing.noderig import Rig, until

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
    for tokens in lengths:
        answer = await grid.complete([65] * tokens, max_tokens=2)
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
        (FAST, SLOW, THRESHOLD + 1, "local; cluster=home; reason=sooner_here"),
        (SLOW, FAST, THRESHOLD + 1, "remote; cluster=far; reason=long"),
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
