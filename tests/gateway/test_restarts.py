"""Any program is killed and started again, in any order, while requests run: each request ends in one clear way, and
the system comes back by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from prfaas.testing.grid import Grid
from prfaas.testing.noderig import Answer, until
from prfaas.testing.restarts import WHICH, Which, begin, end

LONG, SHORT = "x" * 120, "hello"
DEADLINE_S = 5.0
TOKENS = 6
CLEAR = {"unreachable", "no_decode_node", "node_lost", "cut_off", "kv_transfer_failed", "starting", "timeout"}
ORDERS = 4


@dataclass
class Clients:
    """Ask without end, long and short, whole and streamed; `ends` is how each request ended."""

    grid: Grid
    expected: dict[str, str]
    gateway_down: bool = False
    ends: list[str] = field(default_factory=list)
    _stop: bool = False
    _epoch: int = 0

    async def run(self, many: int) -> None:
        """Until `stop`."""
        async with asyncio.TaskGroup() as group:
            for i in range(many):
                group.create_task(self._client(i))

    def stop(self) -> None:
        """After what runs."""
        self._stop = True

    async def ended(self, more: int) -> None:
        """So many more requests have ended."""
        wanted = len(self.ends) + more
        await until(lambda: len(self.ends) >= wanted, f"{more} more requests")

    async def _client(self, i: int) -> None:
        while not self._stop:
            prompt, stream = (LONG, SHORT)[i % 2], i % 4 >= 2
            i += 1
            down = self.gateway_down
            began = asyncio.get_running_loop().time()
            headers = {"x-prfaas-deadline-ms": str(int(DEADLINE_S * 1000))}
            try:
                answer = await self.grid.complete(prompt, headers, max_tokens=TOKENS, stream=stream)
            except (aiohttp.ClientError, OSError):
                assert down or self.gateway_down, "the gateway hung up, and was not killed"
                self.ends.append("gateway gone")
                await asyncio.sleep(0.01)
                continue
            assert asyncio.get_running_loop().time() - began < DEADLINE_S + 10, "a hang"
            self.ends.append(self._judge(answer, prompt))

    def _judge(self, answer: Answer, prompt: str) -> str:
        if answer.status != 200:
            assert answer.status in (502, 503), answer.body
            assert answer.code in CLEAR, answer.body
            return answer.code
        if answer.headers["Content-Type"].startswith("text/event-stream") and not answer.events[-1].is_done:
            assert answer.events[-1].name == "error", answer.body
            return "broken"
        assert answer.text == self.expected[prompt], "a wrong token"
        return "ok"


async def clients_of(grid: Grid) -> Clients:
    texts = {prompt: (await grid.decoders[0].complete(prompt, max_tokens=TOKENS)).text for prompt in (LONG, SHORT)}
    return Clients(grid, texts)


async def route(grid: Grid, prompt: str) -> str:
    """Where a request went, "" when it was not answered."""
    try:
        answer = await grid.complete(prompt, max_tokens=TOKENS)
    except (aiohttp.ClientError, OSError):
        return ""
    return answer.headers["x-prfaas-route"] if answer.status == 200 else ""


async def back(grid: Grid) -> None:
    """Remote and local are served again, and nothing is held."""
    await grid.known()
    for prompt, wanted in ((LONG, "remote; cluster=far; reason=long"), (SHORT, "local; cluster=home; reason=short")):
        said = ""
        for _ in range(200):
            if (said := await route(grid, prompt)) == wanted:
                break
        assert said == wanted
    await grid.settled()


async def through(grid: Grid, script: Callable[[Clients], object]) -> Clients:
    clients = await clients_of(grid)
    asking = asyncio.create_task(clients.run(6))
    await clients.ended(6)
    await script(clients)  # type: ignore[misc]
    await clients.ended(12)
    clients.stop()
    await asyncio.wait_for(asking, DEADLINE_S + 10)
    await back(grid)
    return clients


async def kill_and_start(grid: Grid, clients: Clients, which: Which) -> None:
    clients.gateway_down = which == "gateway"
    await end(grid, which)
    await clients.ended(8)
    await begin(grid, which)
    await grid.known()
    clients.gateway_down = False
    await clients.ended(4)


@pytest.mark.parametrize("which", WHICH)
async def test_one_restarts_while_requests_run(grid: Grid, which: Which) -> None:
    clients = await through(grid, lambda clients: kill_and_start(grid, clients, which))
    assert clients.ends.count("ok") >= 12
    if which in ("far", "home", "service"):
        assert set(clients.ends) == {"ok"}, "there is another way for every request"


@pytest.mark.slow
@pytest.mark.parametrize("at", range(ORDERS))
async def test_all_restart_one_after_another(grid: Grid, at: int, rng: random.Random) -> None:
    order = rng.sample(WHICH, len(WHICH))

    async def script(clients: Clients) -> None:
        for which in order:
            await kill_and_start(grid, clients, which)

    clients = await through(grid, script)
    assert clients.ends.count("ok") >= 12, (order, clients.ends)


@pytest.mark.slow
@pytest.mark.parametrize("at", range(ORDERS))
async def test_all_are_down_and_come_back_in_any_order(grid: Grid, at: int, rng: random.Random) -> None:
    down, up = rng.sample(WHICH, len(WHICH)), rng.sample(WHICH, len(WHICH))

    async def script(clients: Clients) -> None:
        clients.gateway_down = True
        for which in down:
            await end(grid, which)
            await clients.ended(2)
        for which in up:
            await begin(grid, which)
            await clients.ended(2)
        await grid.known()
        clients.gateway_down = False

    clients = await through(grid, script)
    assert clients.ends.count("ok") >= 12, (down, up, clients.ends)
