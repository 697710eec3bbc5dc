"""Against queueing theory: waiting times of M/M/c and M/G/1 lie within the confidence interval of ten seeds."""

from __future__ import annotations

from math import factorial
from random import Random

import pytest

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.run import interval

from .conftest import drawn, flat, run

SEEDS = range(10)
MEAN = 1000
"""Tokens of a prompt, at a millisecond each."""


def waits(nodes: int, rate: float, tokens: object, name: str = "local") -> list[float]:
    """Mean wait for prefill by seed, in seconds."""
    setup = flat((("home", nodes, 10**6),), kv=0)
    return [
        run(setup, policy_of(name, 0), drawn(seed, rate, tokens, 1), 8000).tally.queued.mean / 1e9  # type: ignore[arg-type]
        for seed in SEEDS
    ]


def exponential(chance: Random) -> int:
    return max(1, round(chance.expovariate(1 / MEAN)))


def two_points(chance: Random) -> int:
    return 200 if chance.random() < 0.8 else 4200


def erlang_c(nodes: int, offered: float) -> float:
    """The chance to wait in M/M/c."""
    full = offered**nodes / factorial(nodes) * nodes / (nodes - offered)
    return full / (sum(offered**k / factorial(k) for k in range(nodes)) + full)


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 3])
def test_mmc(nodes: int) -> None:
    offered = 0.7 * nodes
    expected = erlang_c(nodes, offered) / (nodes - offered)
    found = interval(waits(nodes, offered, exponential))
    assert abs(found.mean - expected) <= found.half
    assert found.half <= 0.12 * expected


@pytest.mark.slow
def test_mg1() -> None:
    rate = 0.6
    second = 0.8 * 0.2**2 + 0.2 * 4.2**2
    expected = rate * second / (2 * (1 - rate))  # Pollaczek-Khinchine
    found = interval(waits(1, rate, two_points))
    assert abs(found.mean - expected) <= found.half
    assert found.half <= 0.12 * expected
