"""Nodes whose engine is one rank, against a node of several: every head is fetched from a rank that has it, or refused
by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.ids import TransferId
from prfaas.engine.node.arrival import Arrivals
from prfaas.engine.node.credit import Credits
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks
from prfaas.testing.noderig import Pair
from prfaas.transport.base import Peer
from prfaas.wire.control import Address, TransferParams

LAYOUT = KVLayout("r", (Part(0, "k", PartKind.TOKENS, (2, 8), "uint8"),))


class Dials:
    """A transport that only says what it was asked for."""

    def receive(
        self, transfer: TransferId, layout: KVLayout, length: int, remote: list[Peer], *_: Any, held: int, **__: Any
    ) -> Any:
        self.asked = transfer, [peer.port for peer in remote], held
        return SimpleNamespace(ended=nothing)


async def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("ranks", "name", "ports"),
    [(1, "t.1", [0]), (2, "t.1@0/1", [0, 1]), (8, "t.1@0/1", [0, 4])],
)
async def test_who_is_dialled(ranks: int, name: str, ports: list[int]) -> None:
    dials, tasks = Dials(), Tasks()
    engine: Any = SimpleNamespace(layout=LAYOUT)
    arrivals = Arrivals(engine, dials, Credits(1000, 1), tasks, Metrics())  # type: ignore[arg-type]
    leg = TransferParams("t.1", remote=[Address("h", port) for port in range(ranks)])
    asked: Any = SimpleNamespace(leg=leg, transfer=TransferId("t.1"), kv_tokens=3, deadline_ns=0)
    await arrivals.begin(asked, lambda: 2)
    assert dials.asked == (name, ports, 2)
    await tasks.close()


async def test_a_state_of_several_ranks_is_refused_by_name(pair: Pair) -> None:
    prompt = "It was the best of times"
    params = pair.params("t.1", pair.tokens(prompt))
    answer = await pair.decode("t.1", prompt, params={"remote": params["remote"] * 2})
    assert (answer.status, answer.code) == (502, "kv_transfer_failed")
    assert "layer 2 state: a state of 2 ranks cannot be given to 1; run both sides" in answer.message
    assert pair.home.held == (0, 0, 0)


async def test_a_receiver_of_several_ranks_is_refused(pair: Pair) -> None:
    tokens = pair.tokens("It was the worst of times")
    leg = TransferParams("t.1", do_remote_decode=True, link="far->home", prompt_tokens=len(tokens), receivers=4)
    answer = await pair.far.complete(tokens, max_tokens=1, kv_transfer_params=msgspec.to_builtins(leg))
    assert (answer.status, answer.code) == (400, "layout_mismatch")
    assert "not to the 4 of the receiver" in answer.message


async def test_the_name_of_a_ranks_share_is_not_a_transfers(pair: Pair) -> None:
    answer = await pair.prefill("t.1@0/2", pair.tokens("It was the age of wisdom"))
    assert answer.status == 400
    assert "transfer_id t.1@0/2 is a name for a rank's share" in answer.message
