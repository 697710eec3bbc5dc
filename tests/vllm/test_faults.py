"""What breaks between two vLLM engines: the request ends with an error or a right answer, and all blocks come back."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
import pytest_asyncio
from tests.vllm.pair import Pair

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="module")]

SLOW_BPS = 4_000_000
LONG = 2500


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(tiny, tmp_path_factory):
    found = Pair(
        tiny("gemma3"),
        tmp_path_factory.mktemp("faults"),
        dtype="float32",
        prefix_cache_retention_interval=None,  # all windows can be found again
        far={
            "num_gpu_blocks_override": 70,
            "max_num_batched_tokens": 512,
            "long_prefill_token_threshold": 128,  # several prefills side by side
            "scheduler_reserve_full_isl": False,
        },
        home={"num_gpu_blocks_override": 46},
        extra={"home": {"recompute_below": 200}},
    )
    try:
        await found.start()
        yield found
    finally:
        await found.close()


@pytest_asyncio.fixture(loop_scope="module", autouse=True)
async def whole(pair):
    """Each test leaves everything as it was."""
    yield
    await pair.pace(10**11)
    await nothing_left(pair)


async def nothing_left(pair: Pair) -> None:
    far, home = await pair.far.settled(), await pair.home.settled()
    assert (far["free"], home["free"]) == (pair.far.ready["blocks"], pair.home.ready["blocks"])
    async with asyncio.timeout(10):
        for name in ("far", "home"):
            while (await pair.control(name, "GET", "node"))["transfers_in_use"]:
                await pair.home.ask(do="state")


def prompt(length: int) -> list[int]:
    return [random.randrange(256) for _ in range(length)]


async def cause(pair: Pair, transfer: str) -> str:
    return (await pair.control("far", "GET", f"sent/{transfer}"))["cause"]


async def moving(pair: Pair, name: str = "home") -> None:
    """Waits until a transfer is under way."""
    async with asyncio.timeout(20):
        while not (await pair.control(name, "GET", "node"))["transfers_in_use"]:
            await pair.home.ask(do="state")


async def failed(decode: asyncio.Future[dict[str, Any]], within_s: float = 10) -> None:
    async with asyncio.timeout(within_s):
        end = await decode
    assert end["finish"] == "error", end
    assert not end["tokens"]


async def test_decode_is_aborted_before_its_first_token(pair):
    await pair.pace(SLOW_BPS)
    tokens, transfer = prompt(LONG), pair.name()
    prefill, _ = pair.prefill(transfer, tokens), pair.decode(transfer, tokens)
    await prefill
    await moving(pair)
    pair.home.tell(do="abort", id=transfer)
    assert await cause(pair, transfer) == "cancelled"


async def test_prefill_is_aborted(pair):
    tokens, transfer = prompt(4000), pair.name()
    decode = pair.decode(transfer, tokens)
    pair.prefill(transfer, tokens)
    pair.far.tell(do="abort", id=transfer)
    await failed(decode)
    assert await cause(pair, transfer) == "cancelled"


async def test_prefill_that_nobody_fetches_is_let_go_by_an_idle_engine(pair):
    transfer = pair.name()
    began = time.monotonic()
    await pair.prefill(transfer, prompt(300))
    state = await pair.far.ask(do="state")
    assert state["requests"] == 1, "its blocks are held"
    held = 0
    while not held and time.monotonic() - began < 8:  # the worker hears of it with the engine's next step
        held = (await pair.control("far", "GET", "node"))["blocks_in_use"]
    assert held > 0
    assert await cause(pair, transfer) == "lease"
    assert time.monotonic() - began < 8


async def test_deadline(pair):
    await pair.pace(SLOW_BPS)
    tokens, transfer = prompt(LONG), pair.name()
    prefill = pair.prefill(transfer, tokens)
    began = time.monotonic()
    await failed(pair.decode(transfer, tokens, deadline_ms=1500))
    assert time.monotonic() - began < 4
    await prefill
    assert await cause(pair, transfer) != "applied"


async def test_nothing_was_ever_offered(pair):
    transfer = pair.name()
    await failed(pair.decode(transfer, prompt(900), deadline_ms=1000))


@pytest.mark.parametrize(
    "more",
    [
        {"prompt_hash": "0" * 32},
        {"prompt_tokens": 7},
        {"ticket": "no ticket"},
        {"ticket": ""},
        {"connections": "two"},
        {"do_remote_decode": True},
        {"epoch": 1},
    ],
    ids=str,
)
async def test_what_a_decode_leg_must_not_say(pair, more):
    tokens, transfer = prompt(700), pair.name()
    await failed(pair.decode(transfer, tokens, deadline_ms=3000, **more))


async def test_what_a_prefill_leg_must_not_say(pair):
    await failed(pair.prefill(pair.name(), prompt(1)))
    await failed(pair.prefill(pair.name(), prompt(50), prompt_tokens=51))
    transfer = pair.name()
    await pair.prefill(transfer, prompt(50), epoch=1)
    assert await cause(pair, transfer) == "stale_epoch"


async def test_a_short_prompt_is_computed_when_its_load_fails(pair):
    tokens = prompt(150)
    wanted = (await pair.far.add(pair.name(), tokens, 12))["tokens"]
    found = await pair.decode(pair.name(), tokens, ticket="no ticket")
    assert (found["finish"], found["tokens"]) == ("length", wanted)


async def test_the_local_prefix_is_evicted_while_the_rest_comes(pair):
    tokens = prompt(1500)
    answered = await pair.handed_over(tokens, 60)  # into blocks whose windows are whole
    tokens += answered["tokens"] + prompt(200)
    await pair.pace(SLOW_BPS // 8)
    transfer = pair.name()
    prefill, decode = pair.prefill(transfer, tokens), pair.decode(transfer, tokens)
    await moving(pair)
    await prefill
    assert (await pair.home.ask(do="reset"))["done"]
    await pair.pace(10**11)
    await failed(decode)


async def test_prefills_are_preempted(pair):
    prompts = [prompt(2900) for _ in range(4)]
    wanted = []
    for tokens in prompts:
        wanted.append((await pair.far.add(pair.name(), tokens, 12))["tokens"])
        await pair.far.ask(do="reset")
    before = (await pair.far.ask(do="state"))["preempted"]
    async with asyncio.timeout(120):
        found = await asyncio.gather(*(pair.handed_over(tokens) for tokens in prompts))
    assert [one["tokens"] for one in found] == wanted
    assert (await pair.far.ask(do="state"))["preempted"] > before


async def test_the_decode_side_has_no_blocks_left(pair):
    """What landed waits for blocks, and holds none meanwhile."""
    big = pair.home.add(pair.name(), prompt(3000), 200)
    async with asyncio.timeout(20):
        while (await pair.home.ask(do="state"))["free"] > 20:
            pass
    tokens = prompt(2900)
    wanted = (await pair.far.add(pair.name(), tokens, 12))["tokens"]
    await pair.far.ask(do="reset")
    async with asyncio.timeout(120):
        found = await pair.handed_over(tokens)
        assert big.done(), "its blocks are what was waited for"
        await big
    assert found["tokens"] == wanted


async def test_the_two_sides_have_other_weights(tiny, tmp_path):
    found = Pair(tiny("gemma3"), tmp_path, dtype="float32", extra={"home": {"revision": "other weights"}})
    try:
        await found.start()
        tokens, transfer = prompt(100), found.name()
        prefill = found.prefill(transfer, tokens)
        await failed(found.decode(transfer, tokens))
        await prefill
        assert "revision 'other weights' here" in found.home.log.read_text()
        assert await cause(found, transfer) == "lease"
        await nothing_left(found)
    finally:
        await found.close()


async def test_either_side_dies_in_the_middle(tiny, tmp_path):
    found = Pair(tiny("gemma3"), tmp_path, dtype="float32")
    try:
        await found.start()
        await found.pace(SLOW_BPS)
        tokens, transfer = prompt(LONG), found.name()
        prefill, decode = found.prefill(transfer, tokens), found.decode(transfer, tokens)
        await prefill
        await moving(found)
        await found.home.close(kill=True)
        assert (await decode)["finish"] == "gone"
        assert await cause(found, transfer) == "lease"
        far = await found.far.settled()
        assert far["free"] == found.far.ready["blocks"]
        await found.home.start()
        transfer = found.name()
        prefill, decode = found.prefill(transfer, tokens), found.decode(transfer, tokens)
        await prefill
        await moving(found)
        await found.far.close(kill=True)
        await failed(decode, within_s=30)
        assert (await found.home.settled())["free"] == found.home.ready["blocks"]
    finally:
        await found.close()
