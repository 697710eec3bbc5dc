"""Leaving early and failing: work stops at the next layer, waiters always hear, nothing stays behind."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from typing import Any

import pytest

from prfaas.core.errors import InvariantError, RequestError
from prfaas.core.transfer.extent import Extent
from prfaas.engine.base import Sampling
from prfaas.testing.gather import gather
from prfaas.transport.base import LandedKV

TIMEOUT_S = 30
LONG = [11] * 3000


class Gate:
    """A sink that tells the event loop of its first put and waits there, on the engine thread, until it is let go."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.go = threading.Event()
        self.puts: list[Extent] = []
        self._loop = asyncio.get_running_loop()

    def put(self, extent: Extent, data: memoryview) -> None:
        self.puts.append(extent)
        if len(self.puts) == 1:
            self._loop.call_soon_threadsafe(self.reached.set)
            assert self.go.wait(TIMEOUT_S)


@pytest.fixture
def caches(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Weak references to every cache that a model makes from here on."""
    from prfaas.engine.transformers.loaded import LoadedModel

    made: list[weakref.ref[Any]] = []
    original = LoadedModel.new_cache

    def noted(model: Any) -> Any:
        cache = original(model)
        made.append(weakref.ref(cache))
        return cache

    monkeypatch.setattr(LoadedModel, "new_cache", noted)
    return made


def gone(caches: list[weakref.ref[Any]]) -> bool:
    """Whether the one cache that was made is free; a traceback's cycle may have kept it until collected."""
    gc.collect()
    return [ref() for ref in caches] == [None]


async def test_a_cancelled_prefill_stops_at_the_next_layer(engine: Any, caches: list[weakref.ref[Any]]) -> None:
    both = await engine()
    caches.clear()
    gate = Gate()
    task = asyncio.create_task(both.prefill(LONG, gate))
    await asyncio.wait_for(gate.reached.wait(), TIMEOUT_S)  # the loop runs while the engine thread is inside a layer
    assert both.running == 1
    task.cancel()
    gate.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert both.running == 0
    assert {extent.layer for extent in gate.puts} == {gate.puts[0].layer}
    assert {extent.stop for extent in gate.puts} == {128}
    seen = len(gate.puts)
    assert gone(caches)
    await answer_one(both)
    assert len(gate.puts) == seen


async def test_cancelling_twice_still_waits_for_the_thread(engine: Any) -> None:
    both = await engine()
    gate = Gate()
    task = asyncio.create_task(both.prefill(LONG, gate))
    await asyncio.wait_for(gate.reached.wait(), TIMEOUT_S)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    gate.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert both.running == 0


async def test_a_queued_prefill_is_cancelled_before_it_starts(engine: Any) -> None:
    both = await engine(max_sequences=1)
    gate, never = Gate(), Gate()
    first = asyncio.create_task(both.prefill([1] * 300, gate))
    await asyncio.wait_for(gate.reached.wait(), TIMEOUT_S)
    second = asyncio.create_task(both.prefill([1] * 300, never))
    await asyncio.sleep(0)
    second.cancel()
    gate.go.set()
    with pytest.raises(asyncio.CancelledError):
        await second
    await first
    assert never.puts == []


async def test_closing_the_generator_stops_decode(engine: Any, caches: list[weakref.ref[Any]]) -> None:
    both = await engine()
    caches.clear()
    stream = both.generate([1, 2, 3], Sampling(10_000, temperature=0.0), None)
    async for _ in stream:
        break
    assert both.running == 1
    await stream.aclose()
    assert both.running == 0
    assert gone(caches)


async def test_closing_the_generator_stops_its_prefill(engine: Any) -> None:
    both = await engine(chunk_tokens=16)
    original, inside, loop = both._model.forward, asyncio.Event(), asyncio.get_running_loop()
    chunks = []

    def forward(tokens: Any, cache: Any, after_layer: Any) -> Any:
        chunks.append(len(tokens))
        loop.call_soon_threadsafe(inside.set)
        return original(tokens, cache, after_layer)

    both._model.forward = forward
    task = asyncio.create_task(anext(both.generate(LONG, Sampling(1), None)))
    await asyncio.wait_for(inside.wait(), TIMEOUT_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert both.running == 0
    assert len(chunks) < len(LONG) // 16


async def test_a_finished_answer_leaves_no_cache(engine: Any, caches: list[weakref.ref[Any]], answer: Any) -> None:
    both = await engine()
    caches.clear()
    await answer(both, [1, 2, 3], None)
    assert gone(caches)


async def test_what_the_sink_raises_reaches_the_caller_and_nobody_else(engine: Any, answer: Any) -> None:
    both = await engine()

    class Full:
        def put(self, extent: Extent, data: memoryview) -> None:
            raise InvariantError("the sink is full")

    with pytest.raises(InvariantError, match="the sink is full"):
        await both.prefill([1] * 10, Full())
    assert both.running == 0
    await answer(both, [1, 2, 3], None)


async def test_the_threads_death_reaches_every_waiter(engine: Any) -> None:
    both = await engine()
    gate = Gate()
    tasks = [
        asyncio.create_task(both.prefill(LONG, gate)),
        asyncio.create_task(anext(both.generate(LONG, Sampling(1), None))),
    ]
    await asyncio.wait_for(gate.reached.wait(), TIMEOUT_S)

    def dies(*_: Any) -> None:
        raise SystemExit("out of the blue")

    both._model.forward = dies
    gate.go.set()
    for task in tasks:
        with pytest.raises(InvariantError, match="out of the blue"):
            await asyncio.wait_for(task, TIMEOUT_S)
    with pytest.raises(InvariantError, match="out of the blue"):
        await both.prefill([1], gate)
    assert both.running == 0


async def test_close_ends_what_runs_and_what_waits(engine: Any) -> None:
    both = await engine(max_sequences=1)
    gate = Gate()
    running = asyncio.create_task(both.prefill(LONG, gate))
    await asyncio.wait_for(gate.reached.wait(), TIMEOUT_S)
    waiting = asyncio.create_task(anext(both.generate([1, 2], Sampling(1), None)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(both.close())
    await asyncio.sleep(0)
    gate.go.set()
    await asyncio.wait_for(closing, TIMEOUT_S)
    for task in (running, waiting):
        with pytest.raises(RequestError) as caught:
            await task
        assert caught.value.status == 503
    with pytest.raises(RequestError):
        await anext(both.generate([1, 2], Sampling(1), None))
    await both.close()


@pytest.mark.parametrize(
    ("tokens", "sampling"),
    [
        ([], Sampling(1)),
        ([1], Sampling(0)),
        ([259], Sampling(1)),
        ([-1, 1], Sampling(1)),
        ([1], Sampling(1, temperature=-1.0)),
        ([1], Sampling(1, top_p=0.0)),
        ([1] * 256, Sampling(1)),
    ],
)
async def test_a_bad_request_is_refused_and_the_engine_goes_on(
    engine: Any, tokens: list[int], sampling: Sampling
) -> None:
    both = await engine(max_model_len=256)
    with pytest.raises(RequestError) as caught:
        await anext(both.generate(tokens, sampling, None))
    assert caught.value.status == 400
    if tokens[1:]:
        with pytest.raises(RequestError):
            await both.prefill(tokens[:-1] if len(tokens) > 2 else tokens, Gate())
    await answer_one(both)


async def test_landed_kv_that_does_not_fit_is_a_bug(engine: Any) -> None:
    both = await engine()
    landed = (await gather(both, [1, 2, 3])).landed
    short = LandedKV(3, 0, dict(landed.parts))
    short.parts[3, "k"] = short.parts[3, "k"][:-4]
    missing = LandedKV(3, 0, {key: value for key, value in landed.parts.items() if key != (0, "recurrent.0")})
    for tokens, wrong in (
        ([1, 2, 3], landed),
        ([1, 2, 3, 4], short),
        ([1, 2, 3, 4], missing),
        ([1, 2, 3, 4], LandedKV(3, 1, landed.parts)),
    ):
        with pytest.raises(InvariantError, match="landed KV"):
            await anext(both.generate(tokens, Sampling(1), wrong))


async def test_the_model_length_ends_an_answer(engine: Any) -> None:
    both = await engine(max_model_len=8)
    found = [token async for token in both.generate([1] * 5, Sampling(100, temperature=0.0), None)]
    assert [token.finish for token in found] == [None, None, "length"]


async def test_a_stop_id_ends_an_answer(engine: Any) -> None:
    both = await engine()
    greedy = Sampling(8, temperature=0.0)
    ids = [token.id async for token in both.generate([1, 2, 3], greedy, None)]
    stop = next(index for index in range(1, 8) if ids[index] not in ids[:index])
    stopping = Sampling(8, temperature=0.0, stop_ids=frozenset({ids[stop]}))
    found = [token async for token in both.generate([1, 2, 3], stopping, None)]
    assert [token.id for token in found] == ids[: stop + 1]
    assert [token.finish for token in found] == [None] * stop + ["stop"]


async def answer_one(engine: Any) -> None:
    async with contextlib.aclosing(engine.generate([1], Sampling(1), None)) as stream:
        assert [token.finish async for token in stream] == ["length"]
