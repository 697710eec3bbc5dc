"""What a run keeps does not grow with the requests that have ended: no cycles, no books that pile up."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from random import Random

from prfaas.core.cache.spec import PoolSpec
from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import SECOND_NS, Arrival
from prfaas.sim.faults import Fault
from prfaas.sim.prefixes import CacheSetup
from prfaas.sim.request import Request
from prfaas.sim.run import Outcome
from prfaas.sim.setup import LinkSetup

from .conftest import flat, run

CLUSTERS = (("home", 2, 400_000), ("far", 2, 150_000))


def conversations(many: int) -> Iterator[Arrival]:
    """Of which a turn goes on where another one ended."""
    chance = Random(1)
    turns: list[tuple[int, ...]] = [()] * 20
    for at in range(many):
        who = chance.randrange(20)
        before = turns[who] if len(turns[who]) < 60 else ()
        first = (at + 1) * 1000
        blocks = turns[who] = (*before, *range(first, first + chance.randrange(1, 10)))
        yield Arrival(at * 400 * 10**6, len(blocks) * 64 + 1 + chance.randrange(63), 5, blocks)


def test_nothing_is_left_of_requests_that_have_ended() -> None:
    setup = flat(CLUSTERS, bps=10**8)
    back = LinkSetup(0, 1, 10**9, 10**6)
    setup = replace(setup, links=(*setup.links, back), cache=CacheSetup(PoolSpec(64, 2), 500))
    slow = Fault("link", "far", 100 * SECOND_NS, 200 * SECOND_NS, target="home", bps=10**6)
    gc.collect()
    gc.disable()
    try:
        world = run(setup, policy_of("ours", 1000), conversations(1500), 700, faults=[slow])
        assert world.tally.ended == 1500
        assert world.tally.copied > 0
        assert world.tally.rescued > 0
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [one for one in gc.garbage if isinstance(one, Request)]
        gc.garbage.clear()
        assert left == []
        assert not any(isinstance(one, Request) for one in gc.get_objects())
    finally:
        gc.set_debug(0)
        gc.enable()
    peak_bps = Outcome(None, world.tally, world, 0.0).peak_bps  # type: ignore[arg-type]
    assert 0 < peak_bps <= 10**8 * (1 + 1e-9)  # of what crosses to home; copies go the other way, on a wider line
    for cache in world.caches:
        pool = cache.pool
        assert not cache._grants
        assert not pool._jobs
        assert len(pool._finder) <= 2 * pool.nodes + 65
