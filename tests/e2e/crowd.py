"""Many clients at once: what each asked, what came, how it ended. One asyncio loop; the system is elsewhere.

It knows the public API and what emulated nodes must answer; it does not know what is done to the system meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from prfaas.wire.sse import EventReader
from tests.e2e.derived import expected

LATE_S = 5.0
"""How long after its deadline the last word on a request may come."""


@dataclass(slots=True)
class Ask:
    """One request. `leaves_after_s`: when its client hangs up, if it does."""

    gateway: str
    prompt: str
    max_tokens: int
    stream: bool
    leaves_after_s: float | None


@dataclass(slots=True)
class Told:
    """How one request ended, and when on `time.monotonic`. `kind`: right, wrong, error, cut, left, or hung."""

    kind: str
    began: float
    ended: float
    detail: str = ""
    route: str = ""


@dataclass(slots=True)
class Crowd:
    """`size` clients, each asking one thing after another. `texts` are cut into prompts; all chance is `seed`'s.

    `told` grows by how each request ended.
    """

    urls: dict[str, str]
    texts: str
    size: int
    deadline_s: float
    seed: str
    told: list[Told] = field(default_factory=list)

    async def for_(self, seconds: float) -> None:
        """All clients ask until the time is over and what they asked has ended."""
        until = time.monotonic() + seconds
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            await asyncio.gather(*(self._client(session, at, until) for at in range(self.size)))

    async def _client(self, session: aiohttp.ClientSession, number: int, until: float) -> None:
        chance = random.Random(f"{self.seed} {number}")
        await asyncio.sleep(chance.random())
        while time.monotonic() < until:
            told = await self._one(session, self._ask(chance))
            self.told.append(told)
            if told.kind in ("error", "cut"):
                await asyncio.sleep(0.2 + 0.3 * chance.random())  # as a sane client does

    def _ask(self, chance: random.Random) -> Ask:
        size = chance.choice((20, 200, 1500, 2500, 4000, 6000))
        start = chance.randrange(len(self.texts) - size)
        return Ask(
            gateway=chance.choice(sorted(self.urls)),
            prompt=self.texts[start : start + size],
            max_tokens=chance.randint(4, 24),
            stream=chance.random() < 0.8,
            leaves_after_s=chance.uniform(0, 1.5) if chance.random() < 0.05 else None,
        )

    async def _one(self, session: aiohttp.ClientSession, ask: Ask) -> Told:
        began = time.monotonic()

        def told(kind: str, detail: str = "", route: str = "") -> Told:
            return Told(kind, began, time.monotonic(), detail, route)

        patience_s = self.deadline_s + LATE_S if ask.leaves_after_s is None else ask.leaves_after_s
        try:
            async with asyncio.timeout(patience_s):
                kind, detail, route = await self._talk(session, ask)
                return told(kind, detail, route)
        except TimeoutError:
            return told("hung" if ask.leaves_after_s is None else "left")
        except (aiohttp.ClientError, ConnectionError) as error:
            return told("cut", f"{type(error).__name__}: {error}")

    async def _talk(self, session: aiohttp.ClientSession, ask: Ask) -> tuple[str, str, str]:
        body = {
            "model": "emulated",
            "prompt": ask.prompt,
            "max_tokens": ask.max_tokens,
            "temperature": 0,
            "stream": ask.stream,
        }
        headers = {"x-prfaas-deadline-ms": str(int(self.deadline_s * 1000))}
        url = self.urls[ask.gateway] + "/v1/completions"
        async with session.post(url, json=body, headers=headers) as answer:
            route = answer.headers.get("x-prfaas-route", "")
            if answer.status != 200:
                error = (await answer.json())["error"]
                return "error", f"{answer.status} {error['code']}: {error['message']}", route
            if ask.stream:
                text, finish, error = await _events(answer)
            else:
                choice = (await answer.json())["choices"][0]
                text, finish, error = choice["text"], choice["finish_reason"], ""
            if error:
                return "error", f"in the stream: {error}", route
            right = expected(ask.prompt, ask.max_tokens)
            good = text == right and finish == ("stop" if len(right) < ask.max_tokens else "length")
            return ("right", "", route) if good else ("wrong", f"{text!r} for {right!r}, {finish}", route)


async def _events(answer: aiohttp.ClientResponse) -> tuple[str, str, str]:
    """Text, why it ended, and the error that ended it, if one did."""
    reader, text, finish, done = EventReader(), "", "", False
    async for data in answer.content.iter_any():
        for event in reader.feed(data):
            if event.is_done:
                done = True
                continue
            said: dict[str, Any] = json.loads(event.data)
            if "error" in said:
                return text, finish, f"{said['error']['code']}: {said['error']['message']}"
            for choice in said["choices"]:
                text += choice["text"]
                finish = choice["finish_reason"] or finish
    return text, finish, "" if done else "no end mark, and no error either"


def touched(one: Told, windows: Sequence[tuple[float, float]]) -> bool:
    """Whether any fault was at work while `one` was under way."""
    return any(start < one.ended and one.began < end for start, end in windows)
