"""Legs at peers that hand over in their own way: what was taken for the hand-over goes back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, cast

import msgspec

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId
from prfaas.core.routing.effects import Decided, StartPrefill
from prfaas.core.routing.events import PrefillBound, PrefillDone
from prfaas.gateway.exchange import Exchange
from prfaas.gateway.legs import Legs, LegSettings
from prfaas.runtime.driver import loop_now_ns
from prfaas.runtime.metrics import Metrics
from prfaas.wire.control import Address, PrefillRequest, PrefillUpdate
from prfaas.wire.openai.prompt import Prompt

HOME, NODE, REQUEST = ClusterName("home"), NodeName("d"), RequestId("r")


class Decoder:
    """A decode node that notes which credits come back."""

    def __init__(self) -> None:
        self.released: list[str] = []

    async def release_credit(self, transfer: str, timeout_s: float) -> None:
        self.released.append(transfer)


class Source:
    """Prefills at once; `parameters`: what its engine's own connector is to be told, if it has one."""

    def __init__(self, parameters: dict[str, Any] | None) -> None:
        self.parameters = parameters

    async def prefill(self, request: PrefillRequest) -> AsyncGenerator[PrefillUpdate, None]:
        yield PrefillUpdate("bound", node="p", remote=[Address("h", 1)], parameters=self.parameters)
        yield PrefillUpdate("done")


async def released(parameters: dict[str, Any] | None) -> list[str]:
    decoder, posted = Decoder(), asyncio.Queue[Any]()
    settings = LegSettings("m", HOME, 1000, lambda node: "layout", lambda node: 1)
    legs = Legs(
        settings,
        {NODE: cast(NodeClient, decoder)},
        {HOME: Source(parameters)},
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
    assert isinstance(await posted.get(), PrefillBound)
    assert isinstance(await posted.get(), PrefillDone)
    await asyncio.gather(*legs._tasks.values())
    await legs.close()
    return decoder.released


async def test_credit_is_for_what_lands_by_our_transport() -> None:
    assert await released(None) == []


async def test_credit_goes_back_when_the_engine_fetches_for_itself() -> None:
    assert len(await released({"remote_engine_id": "e"})) == 1
