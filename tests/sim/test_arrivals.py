"""Streams come at their rate, in order, the same for the same seed; users wait for their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from random import Random

import pytest

from prfaas.core.routing.catalog import policy_of
from prfaas.core.throughput.lengths import lognormal
from prfaas.sim import arrivals
from prfaas.sim.arrivals import SECOND_NS, Arrival, Draw, lognormal_draw, spread_draw
from prfaas.sim.sessions import Sessions
from prfaas.sim.tally import Tally
from prfaas.sim.world import World

from .conftest import flat
from .test_world import ended_once

MAKERS: dict[str, Callable[[float, Draw, Random], Iterator[Arrival]]] = {
    "even": lambda rate, draw, chance: arrivals.even(rate, draw),
    "poisson": arrivals.poisson,
    "bursts": lambda rate, draw, chance: arrivals.bursts(rate, 3, 30, 180, draw, chance),
    "mmpp": lambda rate, draw, chance: arrivals.mmpp(rate, 3, 30, 150, draw, chance),
    "diurnal": lambda rate, draw, chance: arrivals.diurnal(rate, 0.8, 600, draw, chance),
}


def fixed() -> tuple[int, int]:
    return 100, 2


@pytest.mark.parametrize("name", MAKERS)
def test_a_stream_has_its_rate_and_order(name: str) -> None:
    found = list(islice(MAKERS[name](5.0, fixed, Random(1)), 20_000))
    assert all(a.at_ns <= b.at_ns for a, b in pairwise(found))
    assert len(found) / (found[-1].at_ns / SECOND_NS) == pytest.approx(5.0, rel=0.15 if name == "mmpp" else 0.04)
    assert found == list(islice(MAKERS[name](5.0, fixed, Random(1)), 20_000))


def test_bursts_are_so_much_denser() -> None:
    found = islice(MAKERS["bursts"](5.0, fixed, Random(1)), 30_000)
    inside = [75 <= one.at_ns / SECOND_NS % 180 < 105 for one in found]
    dense, thin = sum(inside) / 30, (len(inside) - sum(inside)) / 150
    assert dense / thin == pytest.approx(3.0, rel=0.05)


def test_lengths_are_those_of_the_planner() -> None:
    lengths = lognormal(9.9, 1.0, 128, 131072)
    draw = lognormal_draw(Random(1), 9.9, 1.0, 128, 131072, 7)
    drawn = [draw() for _ in range(20_000)]
    assert {output for _, output in drawn} == {7}
    assert 128 <= min(drawn)[0] <= max(drawn)[0] <= 131072
    assert sum(tokens for tokens, _ in drawn) / 20_000 == pytest.approx(lengths.mean, rel=0.03)
    spread = spread_draw(lengths, 7)
    assert sum(spread()[0] for _ in range(2000)) / 2000 == pytest.approx(lengths.mean, rel=0.002)


def test_a_trace_is_stretched() -> None:
    rows = [Arrival(0, 5, 1), Arrival(10, 5, 1)]
    assert [one.at_ns for one in arrivals.replayed(rows, 2.5)] == [0, 25]


def test_users_wait_for_their_answers_and_build_on_them() -> None:
    sessions = Sessions(3, 2.0, 4.0, 50.0, 64, 4000, lambda: (500, 10), Random(1))
    asked: list[Arrival] = []

    class Spy(World):
        def _arrived(self, now_ns: int, arrival: Arrival) -> None:
            asked.append(arrival)
            super()._arrived(now_ns, arrival)

    world = Spy(
        flat((("home", 2, 400_000),)),
        policy_of("local", 0),
        iter(()),
        Tally(SECOND_NS, None, None),
        duration_ns=200 * SECOND_NS,
        sessions=sessions,
    )
    world.run()
    ended_once(world)
    assert world.closed
    for user in range(3):
        own = [one for one in asked if one.session == user]
        assert len(own) > 20
        assert all(b.at_ns >= a.at_ns + 200_000_000 for a, b in pairwise(own))  # nobody asks before the answer
        grown = [(a, b) for a, b in pairwise(own) if b.tokens > 500]
        assert grown
        assert all(b.tokens > a.tokens + 10 and b.blocks[: len(a.blocks)] == a.blocks for a, b in grown)
        anew = [(a, b) for a, b in pairwise(own) if b.tokens == 500]
        assert all(not set(a.blocks) & set(b.blocks) for a, b in anew)
