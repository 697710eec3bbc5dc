"""Nodes that join, renew, leave and vanish: they are used like listed ones, and no request is lost over it."""

from __future__ import annotations

import asyncio
import time

import pytest
import structlog

from prfaas.cluster.roster import Sight
from prfaas.core.ids import Epoch, NodeName
from prfaas.engine.node.joining import Joining
from prfaas.runtime.client import Refused, call
from prfaas.testing.grid import FAR, Grid, two_clusters
from prfaas.testing.noderig import Node, Rig, until
from prfaas.testing.restarts import join_request, joining, kill
from prfaas.wire.members import PATH, JoinReply, RenewRequest

LONG, SHORT = "x" * 120, "hello"
REMOTE = "remote; cluster=far; reason=long"
RETRY = "local; cluster=home; reason=retry"


class Gate:
    """An engine's hook that waits until it is opened."""

    def __init__(self) -> None:
        self._reached, self._open = asyncio.Event(), asyncio.Event()

    async def __call__(self, _step: int) -> None:
        self._reached.set()
        await self._open.wait()

    async def reached(self) -> None:
        """Somebody waits there."""
        await asyncio.wait_for(self._reached.wait(), 10)

    def open(self) -> None:
        self._open.set()


def states(grid: Grid, where: str = "far") -> dict[str, str]:
    roster = (grid.head if where == "far" else grid.gateway).roster
    return {member.node: member.state for member in roster.members().members}


def gauge(grid: Grid, role: str, state: str) -> float:
    found = [
        sample.value
        for family in grid.far_head.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "prfaas_members" and sample.labels == {"cluster": "far", "role": role, "state": state}
    ]
    return found[0] if found else 0.0


async def spare(rig: Rig, role: str = "prefill", name: str = "spare-1") -> Node:
    return await rig.node(name, "decode" if role == "decode" else "prefill")


async def alone_in_far(grid: Grid) -> None:
    """The listed node is dead, the spare one is all there is."""
    await until(lambda: states(grid) == {"far-p": "absent", "spare-1": "joined"}, "the spare node alone")
    await until(lambda: grid.gateway.sees(FAR) == 1, "and the gateway knows")


async def test_a_node_that_joins_is_used_and_one_that_leaves_is_not(rig: Rig, grid: Grid) -> None:
    extra = await spare(rig)
    async with joining(extra.session, grid.service.url, extra) as (member, task):
        await until(lambda: states(grid).get("spare-1") == "joined", "seen by a look")
        await until(lambda: grid.gateway.sees(FAR) == 2, "and by the gateway")
        assert gauge(grid, "prefill", "joined") == 1
        gate, engines = Gate(), [node.engine for node in (extra, *grid.far_nodes)]
        for engine in engines:
            engine.before_chunk = gate
        asked = asyncio.gather(*(grid.complete(f"{i}{LONG}", max_tokens=3) for i in range(6)))
        await until(lambda: [engine.running for engine in engines] == [3, 3], "as many at each, none being faster")
        gate.open()
        assert [answer.headers["x-prfaas-route"] for answer in await asked] == [REMOTE] * 6
        assert extra.engine.seen["prefill"] == 3
        task.cancel()
        assert await member.leave(5.0, lambda: False)
    assert "spare-1" not in states(grid)
    assert gauge(grid, "prefill", "joined") == gauge(grid, "prefill", "draining") == 0
    assert gauge(grid, "prefill", "present") == 1
    await until(lambda: grid.gateway.sees(FAR) == 1, "the gateway knows")
    assert (await grid.complete(LONG, max_tokens=3)).headers["x-prfaas-route"] == REMOTE
    assert extra.engine.seen["prefill"] == 3


async def test_who_leaves_finishes_its_prefill_and_gets_no_other(rig: Rig, grid: Grid) -> None:
    extra, gate = await spare(rig), Gate()
    await kill(rig, grid.far_nodes[0])
    async with joining(extra.session, grid.service.url, extra) as (member, task):
        await alone_in_far(grid)
        extra.engine.before_chunk = gate
        async with grid.asking(LONG, max_tokens=3) as asked:
            await gate.reached()
            task.cancel()
            leaving = asyncio.create_task(member.leave(10.0, lambda: extra.server.blocks_in_use > 0))
            await until(lambda: states(grid)["spare-1"] == "draining")
            assert gauge(grid, "prefill", "draining") == 1
            other = await grid.complete("2" + LONG, max_tokens=3)
            assert other.headers["x-prfaas-route"] in (RETRY, "local; cluster=home; reason=unreachable")
            assert not leaving.done(), "it waits for its work"
            gate.open()
            assert (await asked).headers["x-prfaas-route"] == REMOTE
            assert await leaving
    assert states(grid) == {"far-p": "absent"}
    assert extra.engine.seen["prefill"] == 1


async def test_a_bound_on_how_long_a_leaver_waits(rig: Rig, grid: Grid) -> None:
    extra, gate = await spare(rig), Gate()
    await kill(rig, grid.far_nodes[0])
    async with joining(extra.session, grid.service.url, extra) as (member, task):
        await alone_in_far(grid)
        extra.engine.before_chunk = gate
        async with grid.asking(LONG, max_tokens=3) as asked:
            await gate.reached()
            task.cancel()
            assert not await member.leave(0.3, lambda: True)
            await kill(rig, extra)
            assert (await asked).headers["x-prfaas-route"] == RETRY


async def test_a_missed_lease_fails_its_jobs_at_once_and_it_may_come_back(rig: Rig, grid: Grid) -> None:
    """The node does not renew, but does not hang up either: as behind a line that was cut."""
    extra, gate = await spare(rig), Gate()
    await kill(rig, grid.far_nodes[0])
    async with joining(extra.session, grid.service.url, extra, lease_ms=300) as (_, task):
        await alone_in_far(grid)
        extra.engine.before_chunk = gate
        async with grid.asking(LONG, max_tokens=3) as asked:
            await gate.reached()
            task.cancel()
            answer = await asked
            assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
        assert "spare-1" not in states(grid)
        await until(lambda: extra.engine.running == 0, "the call was hung up")
        gate.open()
    with pytest.raises(Refused) as unknown:
        await renew(grid, extra, extra.identity.epoch)
    assert unknown.value.code == "unknown_member"
    async with joining(extra.session, grid.service.url, extra):
        await alone_in_far(grid)
        assert (await grid.complete(LONG, max_tokens=3)).headers["x-prfaas-route"] == REMOTE


async def renew(grid: Grid, node: Node, epoch: int) -> object:
    url = f"{grid.service.url}{PATH}/{node.identity.name}/renew"
    return await call(node.session, "POST", url, RenewRequest(epoch), JoinReply, timeout_s=5)


async def test_a_newer_incarnation_replaces_the_old_one_whose_jobs_fail(rig: Rig, grid: Grid) -> None:
    old, gate = await spare(rig), Gate()
    await kill(rig, grid.far_nodes[0])
    async with joining(old.session, grid.service.url, old) as (_, task):
        await alone_in_far(grid)
        old.engine.before_chunk = gate
        async with grid.asking(LONG, max_tokens=3) as asked:
            await gate.reached()
            del rig.nodes["spare-1"]
            new = await spare(rig)
            async with joining(new.session, grid.service.url, new):
                answer = await asked
                assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
                with pytest.raises(Refused) as stale:
                    await asyncio.wait_for(task, 10)
                assert stale.value.code == "stale_epoch", "the old one learns that it is replaced, and does not fight"
                await until(lambda: states(grid)["spare-1"] == "joined")
                await until(lambda: grid.gateway.sees(FAR) == 1)
                again = await grid.complete("2" + LONG, max_tokens=3)
                assert again.headers["x-prfaas-route"] == REMOTE
                assert new.engine.seen["prefill"] == 1


async def test_a_head_that_restarts_knows_its_members_again(rig: Rig, grid: Grid) -> None:
    extra = await spare(rig)
    async with joining(extra.session, grid.service.url, extra, lease_ms=600):
        await until(lambda: states(grid).get("spare-1") == "joined")
        await grid.far_head.stop(abruptly=True)
        await until(lambda: grid.gateway.sees(FAR) == 0)
        await grid.far_head.start()
        assert "spare-1" not in states(grid)
        await until(lambda: states(grid).get("spare-1") == "joined", "it joined again by itself")
        await until(lambda: grid.gateway.sees(FAR) == 2)
        assert (await grid.complete(LONG, max_tokens=3)).headers["x-prfaas-route"] == REMOTE


async def test_a_node_that_is_early_waits_for_its_head_and_one_that_is_late_leaves_without_it(
    rig: Rig, grid: Grid
) -> None:
    extra = await spare(rig)
    await grid.far_head.stop(abruptly=True)
    member = Joining(extra.session, grid.service.url, join_request(extra))
    task = asyncio.create_task(member.run())
    with structlog.testing.capture_logs() as logs:
        await until(lambda: any(entry["event"] == "cannot join yet" for entry in logs))
        await grid.far_head.start()
        await until(lambda: states(grid).get("spare-1") == "joined")
    await grid.far_head.stop(abruptly=True)
    task.cancel()
    busy = True
    leaving = asyncio.create_task(member.leave(10.0, lambda: busy))
    with structlog.testing.capture_logs() as logs:
        await until(lambda: sum(entry["event"] == "head does not answer" for entry in logs) > 1)
        assert not leaving.done(), "its own work decides"
        busy = False
        assert await leaving
    await grid.far_head.start()


async def test_a_decode_node_joins_serves_and_drains(rig: Rig, grid: Grid) -> None:
    extra, gate = await spare(rig, "decode", "spare-d"), Gate()

    async def later(step: int) -> None:
        if step == 3:
            await gate(step)

    async with joining(extra.session, grid.front.url, extra) as (member, task):
        await until(lambda: grid.gateway.decoders_ready == 2)
        extra.engine.before_token = later
        alone = await grid.decoders[0].complete(LONG, max_tokens=6)
        async with (
            grid.asking(LONG, max_tokens=6, stream=True) as one,
            grid.asking(LONG, max_tokens=6, stream=True) as two,
        ):
            await gate.reached()
            task.cancel()
            leaving = asyncio.create_task(member.leave(10.0, lambda: extra.server.blocks_in_use > 0))
            await until(lambda: states(grid, "home").get("spare-d") == "draining")
            assert grid.gateway.decoders_ready == 1
            answers = await asyncio.gather(*(grid.complete(SHORT, max_tokens=3) for _ in range(4)))
            assert {answer.status for answer in answers} == {200}
            assert sum(extra.engine.seen.values()) == 1, "the one stream, and no new work"
            assert not leaving.done()
            gate.open()
            assert [answer.text for answer in (await one, await two)] == [alone.text] * 2
            assert await leaving
    assert "spare-d" not in states(grid, "home")
    assert NodeName("spare-d") not in grid.gateway.roster.clients
    grid.gateway.validate()


@pytest.mark.parametrize("shown", [False, True])
async def test_a_decode_node_whose_lease_ends_gives_its_requests_back(rig: Rig, grid: Grid, shown: bool) -> None:
    """Before the first token another node answers; after it the stream ends with an error and no end mark."""
    extra, gate = await spare(rig, "decode", "a-spare"), Gate()
    alone = await grid.decoders[0].complete(LONG, max_tokens=6)

    async def later(step: int) -> None:
        if step == 3 or not shown:
            await gate(step)

    async with joining(extra.session, grid.front.url, extra, lease_ms=300) as (_, task):
        await until(lambda: grid.gateway.decoders_ready == 2)
        extra.engine.before_token = later
        async with grid.asking(LONG, max_tokens=6, stream=True) as asked:
            await gate.reached()
            task.cancel()
            answer = await asked
    assert answer.status == 200
    if shown:
        assert answer.events[-1].name == "error"
        assert not any(event.is_done for event in answer.events)
    else:
        assert answer.text == alone.text
    await until(lambda: extra.engine.running == 0, "the call was hung up")
    assert grid.outcomes() == {("remote", "broken" if shown else "ok"): 1}


@pytest.mark.slow
async def test_a_listed_node_that_falls_silent_loses_its_work(rig: Rig) -> None:
    """Its connections stay open, and nothing comes: as behind a line that was cut."""
    far, home = [await rig.node("far-p", "prefill")], [await rig.node("home-p", "prefill")]
    decoders = [await rig.node("a-d", "decode"), await rig.node("b-d", "decode")]
    async with two_clusters(rig, far=far, home=home, decoders=decoders, lease_ns=10**8) as grid:
        gate = Gate()
        decoders[0].engine.before_token = gate
        async with grid.asking(LONG, max_tokens=3) as asked:
            await gate.reached()
            server = decoders[0].server
            room, server._room = server._room, None  # every look is answered 503
            answer = await asked
            server._room = room
        assert answer.status == 200
        assert answer.text == (await decoders[1].complete(LONG, max_tokens=3)).text
        gate.open()
        await until(lambda: grid.gateway.decoders_ready == 2, "it is back")
        await grid.settled()


@pytest.mark.slow
async def test_a_head_that_stood_still_does_not_blame_its_nodes(grid: Grid) -> None:
    server, moves = grid.far_nodes[0].server, []
    told, info = grid.head.member, server.info

    def stand_still() -> object:
        server.info = info  # type: ignore[method-assign]
        time.sleep(1.2)  # not a wait for something: the whole program stands still
        moves.append("stood still")
        return info()

    def member(sight: Sight) -> None:
        moves.append(sight.trouble or "seen")
        told(sight)

    grid.head.member = member  # type: ignore[method-assign]
    server.info = stand_still  # type: ignore[method-assign,assignment]
    await until(lambda: "stood still" in moves)
    await until(lambda: moves[-3:] == ["seen"] * 3)
    assert set(moves) == {"stood still", "seen"}


async def test_a_dispatch_to_a_node_that_restarted_a_moment_ago(rig: Rig, grid: Grid) -> None:
    """The head does not know yet: the node refuses work that is for its old incarnation, and the request goes on."""
    far = grid.far_nodes[0]
    grid.head.roster._watch.unfollow(far.identity.name)
    await kill(rig, far)
    new = await rig.node("far-p", "prefill", port=far.listening.port, epoch=Epoch(far.identity.epoch + 1))
    answer = await grid.complete(LONG, max_tokens=3)
    assert (answer.status, answer.headers["x-prfaas-route"]) == (200, RETRY)
    assert new.engine.seen["prefill"] == 0
    grid.head.roster._watch.follow(grid.head.roster.clients[far.identity.name])
    epochs = lambda: [member.epoch for member in grid.head.roster.members().members]  # noqa: E731
    await until(lambda: epochs() == [new.identity.epoch], "a look has seen the new one")
    assert (await grid.complete(LONG, max_tokens=3)).headers["x-prfaas-route"] == REMOTE


async def test_joining_again_and_again_counts_once(rig: Rig, grid: Grid) -> None:
    extra = await spare(rig)
    for _ in range(5):
        grid.head.roster.join(join_request(extra))
    await until(lambda: states(grid)["spare-1"] == "joined")
    assert gauge(grid, "prefill", "joined") == 1
    for _ in range(2):
        grid.head.roster.leave(NodeName("spare-1"), extra.identity.epoch)
    assert states(grid) == {"far-p": "present"}
    assert [gauge(grid, "prefill", state) for state in ("unseen", "joined", "draining")] == [0, 0, 0]
