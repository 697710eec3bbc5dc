"""Every leg may fail: the answer is right by another way, or there is one clear error; nothing is left behind."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
import structlog

from prfaas.engine.base import Limits
from prfaas.engine.node.identity import NodeLimits
from prfaas.testing.bytemodel import VOCAB
from prfaas.testing.engine import DerivedEngine
from prfaas.testing.grid import FAR, Grid, two_clusters
from prfaas.testing.noderig import LIMITS, Rig, until
from prfaas.testing.restarts import kill

LONG = "x" * 120
RETRY = "local; cluster=home; reason=retry"
MISMATCH = "local; cluster=home; reason=layout_mismatch"


async def fail(_step: int) -> None:
    raise RuntimeError("the accelerator is gone")


async def hang(_step: int) -> None:
    await asyncio.Event().wait()


async def alone(grid: Grid, prompt: str, tokens: int) -> str:
    return (await grid.decoders[0].complete(prompt, max_tokens=tokens)).text


async def test_a_far_engine_that_fails_is_answered_from_home(grid: Grid) -> None:
    grid.far_nodes[0].engine.before_chunk = fail
    answer = await grid.complete(LONG, max_tokens=6)
    assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
    assert answer.text == await alone(grid, LONG, 6)
    assert grid.outcomes() == {("local", "ok"): 1}


async def test_logs_name_the_cluster_that_was_to_prefill(grid: Grid) -> None:
    grid.far_nodes[0].engine.before_chunk = fail
    with structlog.testing.capture_logs() as logs:
        await grid.complete(LONG, max_tokens=2)
    (failed,) = [entry for entry in logs if entry["event"] == "leg failed"]
    first = next(entry for entry in logs if entry["event"] == "decided")
    assert (failed["leg"], failed["cluster"], failed["node"]) == ("prefill", "far", "home-d")
    assert (failed["cluster"], failed["node"]) == (first["cluster"], first["node"])


async def test_logs_name_the_trouble_of_a_cluster(grid: Grid) -> None:
    assert grid.head.info().trouble == ""
    with structlog.testing.capture_logs() as logs:
        await kill(grid.rig, grid.far_nodes[0])
        await until(lambda: grid.gateway.sees(FAR) == 0, "far has no node")
    (seen,) = [entry for entry in logs if entry["event"] == "prefill cluster"]
    assert (seen["cluster"], seen["ready"]) == ("far", 0)
    assert seen["trouble"].startswith("far-p: unreachable: ")
    assert grid.head.info().trouble == seen["trouble"]


async def test_a_far_node_that_vanishes_in_mid_transfer(grid: Grid) -> None:
    far = grid.far_nodes[0]
    reached = asyncio.Event()

    async def stop(step: int) -> None:
        if step >= 64:
            reached.set()
            await asyncio.Event().wait()

    far.engine.before_chunk = stop
    async with grid.asking(LONG, max_tokens=6) as asked:
        await asyncio.wait_for(reached.wait(), 10)
        await kill(grid.rig, far)
        answer = await asked
    assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
    assert answer.text == await alone(grid, LONG, 6)


@pytest.mark.slow
async def test_all_prefill_nodes_fail_and_the_decode_node_does_it(grid: Grid) -> None:
    grid.far_nodes[0].engine.before_chunk = fail
    grid.home_nodes[0].engine.before_chunk = fail
    answer = await grid.complete(LONG, max_tokens=6)
    assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
    assert grid.decoders[0].engine.seen["alone"] == 1
    assert answer.text == await alone(grid, LONG, 6)


async def test_a_service_that_is_gone_is_a_visible_fallback(grid: Grid) -> None:
    await grid.service.close()
    answer = await grid.complete(LONG, max_tokens=6)
    assert answer.status == 200
    assert answer.headers["x-prfaas-route"] in (RETRY, "local; cluster=home; reason=unreachable")
    await until(lambda: grid.gateway.sees(FAR) == 0)
    answer = await grid.complete(LONG, max_tokens=6)
    assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=unreachable"


async def test_a_prefill_that_hangs_ends_at_the_deadline(grid: Grid) -> None:
    grid.far_nodes[0].engine.before_chunk = hang
    answer = await grid.complete(LONG, headers={"x-prfaas-deadline-ms": "300"}, max_tokens=6)
    assert (answer.status, answer.code) == (504, "deadline_exceeded")
    assert answer.headers["x-prfaas-route"] == "remote; cluster=far; reason=long"
    await until(lambda: grid.far_nodes[0].engine.running == 0, "the far engine was stopped")


async def test_a_stream_past_its_deadline_ends_with_an_error_and_no_end_mark(grid: Grid) -> None:
    async def slow(step: int) -> None:
        if step == 3:
            await asyncio.Event().wait()

    grid.decoders[0].engine.before_token = slow
    for deadline_ms in ("400", "2000", "9000"):  # a first token must come within it, on a busy machine too
        answer = await grid.complete(LONG, headers={"x-prfaas-deadline-ms": deadline_ms}, max_tokens=6, stream=True)
        if answer.status == 200:
            break
    assert answer.status == 200
    assert answer.events[-1].name == "error"
    assert not any(event.is_done for event in answer.events)
    assert grid.outcomes()["remote", "broken"] == 1


@pytest.mark.slow
async def test_a_decode_engine_that_fails_before_the_first_token(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("home-a", "decode"), await rig.node("home-b", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        decoders[0].engine.before_token = fail
        answer = await grid.complete(LONG, max_tokens=6)
        assert answer.status == 200
        assert answer.text == (await decoders[1].complete(LONG, max_tokens=6)).text
        decoders[1].engine.before_token = fail
        answer = await grid.complete(LONG, max_tokens=6)
        assert answer.status in (502, 503)
        assert answer.json["error"]["type"] == "server_error"
        await grid.settled()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_decode_engine_that_fails_later(grid: Grid, stream: bool) -> None:
    async def later(step: int) -> None:
        if step == 3:
            raise RuntimeError("gone")

    grid.decoders[0].engine.before_token = later
    answer = await grid.complete(LONG, max_tokens=6, stream=stream)
    if stream:
        assert answer.status == 200
        assert answer.events[-1].name == "error"
        assert not any(event.is_done for event in answer.events)
        assert grid.outcomes() == {("remote", "broken"): 1}
    else:
        assert answer.status in (502, 503), "nothing was shown yet, and there is no other decode node"
        assert answer.json["error"]["message"]


async def test_another_layout_far_away_is_refused_by_name_and_served_at_home(rig: Rig) -> None:
    far = [await rig.node("far-p", "prefill", engine=DerivedEngine(LIMITS, revision="another"))]
    home, decoders = [await rig.node("home-p", "prefill")], [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        answer = await grid.complete(LONG, max_tokens=6)
        assert (answer.status, answer.headers["x-prfaas-route"]) == (200, MISMATCH)
        assert far[0].engine.seen["prefill"] == 0
        await grid.settled()


@pytest.mark.parametrize(("whole_limit", "status"), [(300, 200), (100, 503)])
async def test_states_of_another_number_of_ranks_are_refused_by_name(rig: Rig, whole_limit: int, status: int) -> None:
    far, decoders = [await rig.node("far-p", "prefill")], [await rig.node("home-d", "decode")]
    info = far[0].server.info()
    two_ranks = msgspec.structs.replace(info, data=info.data * 2, fixed="layer 0 conv.0", layout="another one")
    far[0].server.info = lambda: two_ranks  # type: ignore[method-assign]
    async with two_clusters(rig, far=far, home=[], decoders=decoders, whole_limit=whole_limit) as grid:
        answer = await grid.complete(LONG, max_tokens=6)
        assert answer.status == status
        if status == 200:
            assert answer.headers["x-prfaas-route"] == MISMATCH
        else:
            assert "layer 0 conv.0: a state of 2 ranks cannot be given to 1; run both sides" in answer.message
        assert far[0].engine.seen["prefill"] == 0
        await grid.settled()


async def test_a_landing_buffer_that_can_never_take_it_means_whole_at_the_decode_node(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    small = NodeLimits(landing_buffer_bytes=2000)
    decoders = [await rig.node("home-d", "decode", node_limits=small)]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        answer = await grid.complete(LONG, max_tokens=6)
        assert answer.status == 200
        assert answer.headers["x-prfaas-route"] == "local; cluster=home; reason=no_landing_room"
        await grid.settled()


async def test_requests_wait_for_landing_room_and_none_is_lost(rig: Rig) -> None:
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    one_at_a_time = NodeLimits(landing_buffer_bytes=4500)
    decoders = [await rig.node("home-d", "decode", node_limits=one_at_a_time)]
    async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
        answers = await asyncio.gather(*(grid.complete(f"{i}{LONG}", max_tokens=4) for i in range(6)))
        assert [answer.status for answer in answers] == [200] * 6
        assert {answer.headers["x-prfaas-route"] for answer in answers} == {"remote; cluster=far; reason=long"}
        await grid.settled()


async def test_a_full_queue_falls_back_home(rig: Rig) -> None:
    limits = Limits(max_model_len=400, max_sequences=1, vocab_size=VOCAB, block_tokens=16, kv_blocks=64)
    far = [await rig.node("far-p", "prefill", limits=limits)]
    home, decoders = [await rig.node("home-p", "prefill")], [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, queue_length=1) as grid:
        gate = asyncio.Event()
        before = far[0].engine.before_chunk

        async def wait(_step: int) -> None:
            await gate.wait()

        far[0].engine.before_chunk = wait
        async with grid.asking("1" + LONG, max_tokens=2) as first, grid.asking("2" + LONG, max_tokens=2) as second:
            await until(lambda: grid.head.info().queued == 1, "one runs, one waits")
            third = await grid.complete("3" + LONG, max_tokens=2)
            assert (third.status, third.headers["x-prfaas-route"]) == (200, RETRY)
            far[0].engine.before_chunk = before
            gate.set()
            for asked in (first, second):
                assert (await asked).headers["x-prfaas-route"] == "remote; cluster=far; reason=long"
        await grid.settled()


async def test_no_prefill_node_and_too_long_for_the_decode_node(rig: Rig) -> None:
    decoders = [await rig.node("home-d", "decode")]
    async with two_clusters(rig, far=[], home=[], decoders=decoders, whole_limit=100) as grid:
        assert (await grid.complete("x" * 80, max_tokens=2)).headers["x-prfaas-route"].endswith("reason=unreachable")
        answer = await grid.complete(LONG, max_tokens=2)
        assert (answer.status, answer.code) == (503, "no_prefill_node")
        assert "121" in answer.message
        assert "100" in answer.message
        await grid.settled()
