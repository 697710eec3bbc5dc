"""Legs at peers that hand over in their own way: what was taken for the hand-over goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.routing.effects import Decided, ReleaseCredit, StartPrefill
from prfaas.core.routing.events import PrefillBound, PrefillDone
from prfaas.gateway.exchange import Exchange
from prfaas.gateway.legs import Legs, LegSettings
from prfaas.gateway.sources import PrefillSource
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.testing.noderig import until
from prfaas.wire.control import Address, PrefillRequest, PrefillUpdate
from prfaas.wire.openai.prompt import Prompt

HOME, NODE, REQUEST = ClusterName("home"), NodeName("d"), RequestId("r")


class Decoder:
    """A decode node that notes which credits come back."""

    def __init__(self) -> None:
        self.released: list[str] = []
        self.calls = 0
        self.answers = asyncio.Event()
        self.answers.set()

    async def release_credit(self, transfer: str, timeout_s: float) -> None:
        self.calls += 1
        try:
            await self.answers.wait()
            self.released.append(transfer)
        finally:
            self.calls -= 1


class Source:
    """Prefills at once; `parameters`: what its engine's own connector is to be told, if it has one."""

    def __init__(self, parameters: dict[str, Any] | None) -> None:
        self.parameters = parameters

    async def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        yield PrefillUpdate("bound", node="p", remote=[Address("h", 1)], parameters=self.parameters)
        yield PrefillUpdate("done")


def begun(parameters: dict[str, Any] | None, decoder: Decoder, posted: asyncio.Queue[Any]) -> Legs:
    """Legs of a request whose prefill was just asked for."""
    settings = LegSettings("m", HOME, 1000, lambda node: "layout", lambda node: 1)
    legs = Legs(
        settings,
        {NODE: cast(NodeClient, decoder)},
        {HOME: cast(PrefillSource, Source(parameters))},
        Metrics(),
        posted.put_nowait,
        lambda *trouble: None,
    )
    now_ns = loop_now_ns()
    exchange = Exchange(
        REQUEST,
        "/v1/completions",
        b"{}",
        False,
        Prompt(9, "hash", msgspec.Raw(b"[1,1,1,1,1,1,1,1,1]")),
        now_ns + 10**10,
        asyncio.get_running_loop().create_future(),
    )
    exchange.decided = Decided(REQUEST, 1, now_ns, "local", HOME, NODE, "short", 9, 100, "")
    legs.exchanges[REQUEST] = exchange
    legs.perform(now_ns, StartPrefill(REQUEST, 1, HOME, LinkName("home"), "receiver"))
    return legs


async def released(parameters: dict[str, Any] | None) -> list[str]:
    decoder, posted = Decoder(), asyncio.Queue[Any]()
    legs = begun(parameters, decoder, posted)
    assert isinstance(await posted.get(), PrefillBound)
    assert isinstance(await posted.get(), PrefillDone)
    await asyncio.gather(*legs._tasks.values())
    await legs.close()
    return decoder.released


async def test_credit_is_for_what_lands_by_our_transport() -> None:
    assert await released(None) == []


async def test_credit_goes_back_when_the_engine_fetches_for_itself() -> None:
    assert len(await released({"remote_engine_id": "e"})) == 1


async def test_credit_that_goes_back_twice_at_once_leaves_no_leg_behind() -> None:
    """When the prefill is bound, and when the router says so while that is under way."""
    decoder, posted = Decoder(), asyncio.Queue[Any]()
    decoder.answers.clear()
    legs = begun({"remote_engine_id": "e"}, decoder, posted)
    assert isinstance(await posted.get(), PrefillBound)
    legs.perform(loop_now_ns(), ReleaseCredit(REQUEST, 1, NODE))
    await until(lambda: decoder.calls == 2, "both are under way")
    await legs.close()
    assert (decoder.calls, decoder.released) == (0, [])
    await until(lambda: not legs._tasks, "no leg is left")
