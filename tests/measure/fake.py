"""An OpenAI endpoint that answers at once: a word is a token, and two more begin each prompt. No model, no time."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BASE = 2
STEP_S = 0.001
"""So that tokens come apart, as they do from a model."""


@dataclass
class Fake:
    """`longest`: of a prompt. `batches`: how many decode together, in turn; more than `room` are refused or wait.

    `cached`: whether it says how many tokens it had seen (None: nothing is said of it). `hook(n)` is called at the n-th
    completion, and may return an answer to give instead. `deaf`: it never says what it serves.
    """

    models: tuple[str, ...] = ("fake",)
    longest: int = 100_000
    batches: list[int] = field(default_factory=list)
    room: int = 1000
    counts: bool = True
    usage: bool = True
    done: bool = True
    cached: bool | None = True
    key: str | None = None
    deaf: bool = False
    hook: Callable[[int], web.Response | None] = lambda count: None
    asked: list[dict[str, Any]] = field(default_factory=list)
    _lanes: list[asyncio.Event] = field(default_factory=list)
    _waiting: list[asyncio.Event] = field(default_factory=list)
    _last: tuple[int, int] = (0, 0)

    def app(self) -> web.Application:
        """To serve."""
        app = web.Application(client_max_size=1 << 26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._completions)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        if self.deaf:
            await asyncio.Event().wait()
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return _error(401, "no such key")
        cards = [{"id": name, "object": "model", "max_model_len": self.longest} for name in self.models]
        return web.json_response({"object": "list", "data": cards})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        words = body["prompt"].split()
        self.asked.append(body)
        instead = self.hook(len(self.asked))
        if instead is not None:
            return instead
        if BASE + len(words) + body["max_tokens"] > self.longest:
            return _error(400, f"This model's maximum context length is {self.longest} tokens.")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if body["max_tokens"] > 1:
            try:
                await self._together(response, body, len(words))
            except ConnectionResetError:  # they hung up
                return response
        else:
            await self._send(response, body, len(words), 1)
        used = self._usage(body, len(words), body["max_tokens"])
        if self.usage:
            await response.write(b"data: " + json.dumps({"choices": [], "usage": used}).encode() + b"\n\n")
        if self.done:
            await response.write(b"data: [DONE]\n\n")
        return response

    async def _together(self, response: web.StreamResponse, body: dict[str, Any], words: int) -> None:
        """All lanes of a batch step together; those without room begin when one of the others has ended."""
        mine, place = asyncio.Event(), len(self._lanes)
        self._lanes.append(mine)
        if place < self.room:
            await self._send(response, body, words, 1)
        if len(self._lanes) == self._size(body["max_tokens"]):
            self._waiting, self._lanes = self._lanes[self.room :], self._lanes[: self.room]
            for lane in self._lanes:
                lane.set()
            self._lanes = []
        await mine.wait()
        try:
            for count in range(2 if place < self.room else 1, body["max_tokens"] + 1):
                await self._send(response, body, words, count)
                await asyncio.sleep(STEP_S)
        finally:
            for lane in self._waiting:
                lane.set()

    def _size(self, tokens: int) -> int:
        """How many come: as many as before when they ask again for four times as much."""
        if tokens == 4 * self._last[0]:
            return self._last[1]
        if len(self._lanes) == self.batches[0]:
            self._last = tokens, self.batches.pop(0)
            return self._last[1]
        return self.batches[0]

    async def _send(self, response: web.StreamResponse, body: dict[str, Any], words: int, count: int) -> None:
        chunk: dict[str, Any] = {"choices": [{"index": 0, "text": "x"}]}
        if self.counts:
            chunk["usage"] = self._usage(body, words, count)
        await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")

    def _usage(self, body: dict[str, Any], words: int, count: int) -> dict[str, Any]:
        used: dict[str, Any] = {"prompt_tokens": BASE + words, "completion_tokens": count}
        if self.cached is not None:
            earlier = [one["prompt"].split() for one in self.asked[:-1]] if self.cached and count == 1 else []
            same = max((_same(one, body["prompt"].split()) for one in earlier), default=0)
            used["prompt_tokens_details"] = {"cached_tokens": BASE + same if same > 100 else 0}
        return used


def _same(one: list[str], other: list[str]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "x", "code": None}}, status=status)


def busy(count: int) -> web.Response:
    """An answer of an endpoint that has too much to do."""
    return _error(503, f"no room for request {count}")


@asynccontextmanager
async def serving(fake: Fake) -> AsyncIterator[str]:
    """`fake` on a free port of this event loop: its URL."""
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        (socket,) = site._server.sockets  # type: ignore[attr-defined]
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        await runner.cleanup()


@contextmanager
def served(fake: Fake) -> Iterator[str]:
    """`fake` in a thread of its own: its URL."""
    loop = asyncio.new_event_loop()
    found: list[str] = []
    ready, over = threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with serving(fake) as url:
            found.append(url)
            ready.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)
        loop.close()
