"""How busy prefill nodes were: of the time in which requests came, and in which the nodes had that role."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from prfaas.core.routing.catalog import policy_of
from prfaas.sim.arrivals import Arrival, replayed
from prfaas.sim.chunks import ChunkSetup
from prfaas.sim.faults import Fault
from prfaas.sim.run import Outcome

from .conftest import SECOND_NS, flat, run

CHUNKS = pytest.mark.parametrize("chunks", [None, ChunkSetup(300, 1)])


def use(rows: Sequence[Arrival], faults: Sequence[Fault], chunks: ChunkSetup | None, prefill: int = 1) -> object:
    """Of ten seconds; a token takes 1 ms."""
    setup = replace(flat((("home", prefill, 10**6),), decode=2), chunks=chunks)
    world = run(setup, policy_of("local", 0), replayed(list(rows)), 10, faults=faults)
    assert world.alive == 0
    return Outcome(None, world.tally, world, 0.0).use()  # type: ignore[arg-type]


@CHUNKS
def test_what_is_computed_and_what_happens_after_the_last_request_does_not_count(chunks: ChunkSetup | None) -> None:
    rows = [Arrival(0, 1000, 2), Arrival(8 * SECOND_NS, 5000, 2)]
    late = Fault("slow_node", "home", 50 * SECOND_NS, 90 * SECOND_NS, factor=2.0)
    assert use(rows, [], chunks) == {"home": pytest.approx(0.3)}
    assert use(rows, [late], chunks) == {"home": pytest.approx(0.3)}


@CHUNKS
def test_a_node_counts_while_it_has_the_role(chunks: ChunkSetup | None) -> None:
    rows = [Arrival(0, 4000, 2), Arrival(7 * SECOND_NS, 1000, 2)]
    comes = Fault("to_prefill", "home", 3 * SECOND_NS, 5 * SECOND_NS)
    assert use(rows, [comes], chunks) == {"home": pytest.approx(5 / 15)}
    leaves = Fault("to_decode", "home", 2 * SECOND_NS, 5 * SECOND_NS)  # busy until 4 s, which is when it leaves
    assert use(rows, [leaves], chunks, 2) == {"home": pytest.approx(5 / 14)}


@CHUNKS
def test_nobody_is_busier_than_all_the_time(chunks: ChunkSetup | None) -> None:
    rows = [Arrival(at * SECOND_NS, 3000, 2) for at in range(10)]
    assert use(rows, [], chunks) == {"home": pytest.approx(1.0)}
