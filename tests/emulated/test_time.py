"""How long things take is what the profile says, times the scale: on a virtual clock, to the microsecond."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest

from prfaas.config.topology import Fault
from prfaas.core.transfer.extent import Extent
from prfaas.engine.emulated.device import GRAIN_NS
from prfaas.engine.emulated.engine import EmulatedEngine
from prfaas.engine.emulated.faults import Faults
from prfaas.engine.reuse import Reuse
from prfaas.testing.clock import run_virtual
from tests.emulated.conftest import Make, answer, greedy

STEP_S = 0.025


def now() -> float:
    return asyncio.get_running_loop().time()


class Times:
    """A sink that knows when things came."""

    def __init__(self) -> None:
        self.came: list[tuple[float, Extent]] = []

    def put(self, extent: Extent, data: memoryview) -> None:
        self.came.append((now(), extent))


async def took(work: Coroutine[Any, Any, Any]) -> float:
    began = now()
    await work
    return now() - began


def about(seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


@pytest.mark.parametrize(("tokens", "seconds"), [(1024, 0.44), (8192, 0.72), (32768, 1.84), (20480, 1.28)])
@pytest.mark.parametrize("chunk", [512, 2048, 1 << 20])
def test_a_prefill_takes_what_the_paper_measured(make: Make, tokens: int, seconds: float, chunk: int) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0, chunk_tokens=chunk)
        assert await took(engine.prefill([65] * tokens, Times())) == about(seconds)
        scaled = make(time_scale=0.05, chunk_tokens=chunk)
        assert await took(scaled.prefill([65] * tokens, Times())) == about(seconds * 0.05)

    run_virtual(main())


def test_kv_leaves_layer_by_layer_while_it_is_computed(make: Make) -> None:
    async def main() -> None:
        engine, sink = make("paper-1t", time_scale=1.0, chunk_tokens=4096), Times()
        await engine.prefill([65] * 8192, sink)
        layers = engine.layout.layers()
        first_ns = engine._profile.prefill_ns(4096, 4096)
        for at, extent in sink.came:
            nth = layers.index(extent.layer) + 1
            if extent.stop == 4096:
                due_s = first_ns * nth / len(layers) / 1e9
            else:
                due_s = (first_ns + (720_000_000 - first_ns) * nth / len(layers)) / 1e9
            assert due_s - 1e-6 <= at <= due_s + GRAIN_NS / 1e9 + 1e-6, extent
        assert len({at for at, _ in sink.came}) == 2 * len([n for n in layers if n % 4 == 3]) + 45

    run_virtual(main())


@pytest.mark.parametrize(("tokens", "cached"), [(8192, 4096), (8192, 8128), (32768, 20480), (8192, 0)])
def test_what_is_kept_takes_no_time(make: Make, tokens: int, cached: int) -> None:
    """The profile's time of the uncached tokens in their context; all of the KV is handed over all the same."""

    async def main() -> None:
        engine, sink = make(time_scale=1.0, chunk_tokens=3000), Times()
        prompt = [65] * tokens
        first = Reuse(stops=[cached], every=0)
        first.allowed = 1
        await engine.prefill(prompt, Times(), first)
        blocks = list(first.made[: cached // 64])
        reuse = Reuse(cached, blocks, first.states.get(cached, ()))
        expected_s = engine._profile.prefill_ns(tokens - cached, tokens) / 1e9
        assert await took(engine.prefill(prompt, sink, reuse)) == about(expected_s)
        rows = [extent for _, extent in sink.came if (extent.layer, extent.part) == (0, "k")]
        assert (rows[0].start, rows[-1].stop) == (0, tokens)
        assert all(one.stop == other.start for one, other in pairwise(rows))

    run_virtual(main())


def test_prefills_come_one_after_the_other_the_first_one_first(make: Make) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0)
        alike = [took(engine.prefill([65] * 8192, Times())) for _ in range(3)]
        assert await asyncio.gather(*alike) == [about(0.72), about(1.44), about(2.16)]
        short_after_long = took(engine.prefill([65] * 32768, Times())), took(engine.prefill([65] * 1024, Times()))
        assert await asyncio.gather(*short_after_long) == [about(1.84), about(1.84 + 0.44)]

    run_virtual(main())


def test_a_cancelled_prefill_frees_the_device_at_once(make: Make) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0, chunk_tokens=1 << 20)
        long, short = (asyncio.create_task(took(engine.prefill([65] * n, Times()))) for n in (60000, 1024))
        await asyncio.sleep(1.0)
        long.cancel()
        assert await short == about(1.0 + 0.44)
        assert engine.running == 0

    run_virtual(main())


@pytest.mark.parametrize(("batch", "step_s"), [(1, 0.025), (20, 0.025), (40, 0.05)])
def test_a_step_serves_all_that_run(make: Make, batch: int, step_s: float) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0)
        answers = [took(answer(engine, [65], greedy(100))) for _ in range(batch)]
        assert await asyncio.gather(*answers) == [about(100 * step_s)] * batch

    run_virtual(main())


def test_sequences_join_and_leave_between_steps(make: Make) -> None:
    async def main() -> None:
        engine, ends = make(time_scale=1.0), []

        async def one(after_s: float, tokens: int) -> None:
            await asyncio.sleep(after_s)
            await answer(engine, [65], greedy(tokens))
            ends.append(round(now() / STEP_S, 6))

        await asyncio.gather(one(0, 10), one(0.03, 2), one(0.5, 1))
        # The second comes in the middle of step 2 and takes part in 3 and 4; the third finds nobody.
        assert ends == [4, 10, 21]

    run_virtual(main())


def test_chunks_and_steps_take_turns(make: Make) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0, chunk_tokens=8192)
        decode = took(answer(engine, [65], greedy(4)))
        prefill = took(engine.prefill([65] * 32768, Times()))
        decoded, prefilled = await asyncio.gather(decode, prefill)
        assert prefilled == about(1.84 + 3 * STEP_S)  # four chunks, a step after each
        assert decoded == about(1.84 + 4 * STEP_S)

    run_virtual(main())


def test_alone_is_prefill_and_then_steps(make: Make) -> None:
    async def main() -> None:
        engine = make(time_scale=1.0)
        assert await took(answer(engine, [65] * 8193, greedy(4))) == about(0.72 + 4 * STEP_S)

    run_virtual(main())


def test_lateness_does_not_add_up(make: Make) -> None:
    """A process that is too busy to look wakes up late; what it emulates goes on from when it should have."""

    async def main() -> None:
        engine = make(time_scale=1.0)
        late = 0.01

        class Busy(Times):
            def put(self, extent: Extent, data: memoryview) -> None:
                asyncio.get_running_loop()._no_wait.skipped_s += late  # type: ignore[attr-defined]

        seconds = await took(engine.prefill([65] * 8192, Busy()))
        assert 0.72 <= seconds < 0.72 + 10 * late

    run_virtual(main())


@pytest.mark.parametrize(
    ("fault", "seconds"),
    [
        (Fault(at="prefill:start", do="slow", factor=3.0), 3 * 0.72),
        (Fault(at="prefill:chunk:1", do="slow", factor=2.0), 0.72 * 2 - 0.48),
        (Fault(at="prefill:chunk:1", do="stall", for_ns=5 * 10**9), 0.72 + 5),
        (Fault(at="prefill:chunk", do="stall", for_ns=10**9), 0.72 + 4),
        (Fault(at="prefill:last_layer", do="stall", for_ns=10**9), 0.72 + 1),
        (Fault(at="prefill:chunk", do="stall", for_ns=10**9, times=2), 0.72 + 2),
        (Fault(at="prefill:chunk:7", do="stall"), 0.72),
    ],
)
def test_slow_and_stalled(make: Make, fault: Fault, seconds: float) -> None:
    async def main() -> None:
        engine: EmulatedEngine = make(time_scale=1.0, faults=Faults([fault]))
        assert await took(engine.prefill([65] * 8192, Times())) == about(seconds)

    run_virtual(main())


def test_what_stalls_holds_up_nobody_else(make: Make) -> None:
    async def main() -> None:
        stall = Fault(at="decode:token:3", do="stall", for_ns=10**9, times=1)
        engine = make(time_scale=1.0, faults=Faults([stall]))
        both = await asyncio.gather(*(took(answer(engine, [65], greedy(8))) for _ in range(2)))
        assert both == [about(4 * STEP_S + 1 + 4 * STEP_S), about(8 * STEP_S)]

    run_virtual(main())
