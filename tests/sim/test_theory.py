"""Against queueing theory: waiting times of M/M/c and M/G/1 lie within the confidence interval of ten seeds.

That interval is a tenth of the mean wide where the simulator itself makes the times. So it is also compared, to the
nanosecond, with the recursion of Kiefer and Wolfowitz on the same arrivals; and the recursion, which is cheap, with
theory on so many that 5 % more or less would be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heapreplace
from itertools import takewhile
from math import factorial
from random import Random

import pytest

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import Arrival
from prfaas.sim.run import interval
from prfaas.sim.stats import Histogram

from .conftest import drawn, flat, run

SEEDS = range(10)
MEAN = 1000
"""Tokens of a prompt, at a millisecond each."""
NS_A_TOKEN = 10**6


Tokens = Callable[[Random], int]


def simulated(nodes: int, rate: float, tokens: Tokens, seed: int, seconds: int) -> Histogram:
    """Waits for prefill, ns."""
    setup = flat((("home", nodes, NS_A_TOKEN),), kv=0)
    return run(setup, policy_of("local", 0), drawn(seed, rate, tokens, 1), seconds).tally.queued


def waits(nodes: int, rate: float, tokens: Tokens) -> list[float]:
    """Mean wait for prefill by seed, in seconds."""
    return [simulated(nodes, rate, tokens, seed, 8000).mean / 1e9 for seed in SEEDS]


def recursion(nodes: int, arrivals: Iterator[Arrival], seconds: int) -> tuple[int, int]:
    """How many came, and what they waited together, ns: whoever comes takes the node that is free first."""
    free, many, total = [0] * nodes, 0, 0
    heapify(free)
    for one in takewhile(lambda one: one.at_ns < seconds * 10**9, arrivals):
        begins = max(one.at_ns, free[0])
        heapreplace(free, begins + one.tokens * NS_A_TOKEN)
        many, total = many + 1, total + begins - one.at_ns
    return many, total


def long_waits(nodes: int, rate: float, tokens: Tokens) -> list[float]:
    """The same as `waits`, by the recursion and on many more."""
    found = [recursion(nodes, drawn(seed, rate, tokens, 1), 100_000 // nodes) for seed in SEEDS]
    return [total / many / 1e9 for many, total in found]


def exponential(chance: Random) -> int:
    return max(1, round(chance.expovariate(1 / MEAN)))


def two_points(chance: Random) -> int:
    return 200 if chance.random() < 0.8 else 4200


def erlang_c(nodes: int, offered: float) -> float:
    """The chance to wait in M/M/c."""
    full = offered**nodes / factorial(nodes) * nodes / (nodes - offered)
    return full / (sum(offered**k / factorial(k) for k in range(nodes)) + full)


def mmc(nodes: int) -> float:
    """Mean wait at 70 % load, where a prompt takes a second."""
    return erlang_c(nodes, 0.7 * nodes) / (0.3 * nodes)


def mg1() -> float:
    """Of `two_points` at 0.6 a second, by Pollaczek and Khinchine."""
    return 0.6 * (0.8 * 0.2**2 + 0.2 * 4.2**2) / (2 * (1 - 0.6))


CASES = [
    pytest.param(1, 0.7, exponential, mmc(1), id="M/M/1"),
    pytest.param(3, 2.1, exponential, mmc(3), id="M/M/3"),
    pytest.param(1, 0.6, two_points, mg1(), id="M/G/1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rate", "tokens", "expected"), CASES)
def test_waits_are_those_of_theory(nodes: int, rate: float, tokens: Tokens, expected: float) -> None:
    found = interval(waits(nodes, rate, tokens))
    assert abs(found.mean - expected) <= found.half
    assert found.half <= 0.12 * expected


@pytest.mark.slow
@pytest.mark.parametrize(("nodes", "rate", "tokens", "expected"), CASES)
def test_so_are_those_of_the_recursion_closely(nodes: int, rate: float, tokens: Tokens, expected: float) -> None:
    found = interval(long_waits(nodes, rate, tokens))
    assert abs(found.mean - expected) <= found.half
    assert abs(found.mean - 1.05 * expected) > found.half
    assert abs(found.mean - 0.95 * expected) > found.half


@pytest.mark.parametrize(("nodes", "rate", "tokens", "expected"), CASES)
def test_waits_are_those_of_the_recursion_exactly(nodes: int, rate: float, tokens: Tokens, expected: float) -> None:
    for seed in SEEDS:
        found = simulated(nodes, rate, tokens, seed, 200)
        assert (found.count, found.total) == recursion(nodes, drawn(seed, rate, tokens, 1), 200)
