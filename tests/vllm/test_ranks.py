"""Different tensor parallelism on the two sides: every head comes to every rank that holds it, once and right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.vllm.ranks import HEADS, LINK, Node, cache_of, layout_of  # noqa: E402

from prfaas.core.transfer.extent import extent_bytes, needed  # noqa: E402
from prfaas.core.transfer.receiver import ReceiverState  # noqa: E402
from prfaas.engine.vllm.deals import Deals  # noqa: E402
from prfaas.engine.vllm.orders import Hold, Offer, Orders, Receive, Report  # noqa: E402
from prfaas.runtime.tasks import Tasks  # noqa: E402
from prfaas.transport.memory import MemoryNetwork  # noqa: E402
from prfaas.wire.layout import fingerprint  # noqa: E402

RANKS = (1, 2, 4, 8)
LENGTH = 75
STEPS = ((0, 32), (32, 48), (48, LENGTH))


@asynccontextmanager
async def two(senders: int, receivers: int, states: bool = False) -> AsyncIterator[tuple[Node, Node]]:
    network, tasks = MemoryNetwork(), Tasks()
    far = Node("far-node", senders, 8, network, tasks, states)
    home = Node("home-node", receivers, 16, network, tasks, states)
    await far.listen()
    await home.listen()
    yield far, home
    await far.close()
    await home.close()
    await tasks.close()
    assert tasks._error is None


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


def prefill(far: Node, transfer: str, receivers: int, steps: tuple[tuple[int, int], ...] = STEPS) -> None:
    """The orders of a prefill in several steps, whose rows leave layer by layer."""
    far.step(offers=[Offer(transfer, LENGTH, LINK, 0, 0, receivers)])
    for worker in far.workers:
        worker.fill(LENGTH)
        for start, stop in steps:
            worker.side.begin(Orders(saves=[far.save(transfer, start, stop, LENGTH, receivers)]))
            for name in worker.cache.layers:
                worker.side.save_layer(name)
            worker.side.save_rest()
    far.step(holds=[Hold("prefill", transfer, 9)])


class Heard:
    """What the workers of a node reported."""

    def __init__(self, node: Node) -> None:
        self.node, self.report = node, Report()
        self.sent: list[str] = []
        self.received: list[str] = []

    def __call__(self) -> Heard:
        for worker in self.node.workers:
            sent, received, failed = worker.side.finished()
            assert not failed
            self.sent += sent
            self.received += received
            report = worker.side.report()
            if report is not None:
                self.report = self.report.aggregate(report)
        return self

    def moved(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for worker in self.node.workers:
            for name, count in worker.side.tally.take().items():
                sums[name] = sums.get(name, 0) + count
        return sums


@pytest.mark.parametrize("receivers", RANKS)
@pytest.mark.parametrize("senders", RANKS)
async def test_every_head_comes_once_and_right(senders: int, receivers: int) -> None:
    for held in (0, 32):
        async with two(senders, receivers, states=senders == receivers) as (far, home):
            at_far, at_home = Heard(far), Heard(home)
            for worker in home.workers if held else ():
                worker.fill(held)
            home.step(receives=[Receive(far.params("t", home), LENGTH, held, 0)])
            prefill(far, "t", receivers)
            await until(lambda home=home, heard=at_home: heard().report.landed["t"] == home.ranks)
            for worker in home.workers:
                assert worker.mover.credits.taken_bytes == worker.deals.mine.bytes_at(LENGTH)
            home.step(loads=[home.load("t", held, LENGTH)])
            for worker in home.workers:
                worker.side.load()
                assert worker.lacks(LENGTH) == []
            await until(lambda far=far, heard=at_far: len(heard().sent) == far.ranks)
            await until(lambda home=home: not any(w.mover.transport.in_use for w in home.workers))
            at_home()
            assert at_home.received == ["request"] * receivers
            assert not at_far.report.failed
            assert not at_home.report.failed
            came, went = at_home.moved(), at_far.moved()
            wanted = sum(need(worker.deals.mine, held) for worker in home.workers)
            assert came["bytes"] == went["bytes"] == wanted, "once"
            assert (came["transfers"], went["transfers"]) == (receivers, senders)
            assert not came["failures"] + went["failures"]
            assert not any(w.mover.credits.taken_bytes or w.side.blocks_held() for w in far.workers + home.workers)


def need(layout: Any, held: int) -> int:
    parts = {(part.layer, part.name): part for part in layout.parts}
    return sum(extent_bytes(parts[extent.layer, extent.part], extent) for extent in needed(layout, LENGTH, held))


@pytest.mark.parametrize("ranks", RANKS)
def test_the_layout_is_the_same_for_all_sizes(ranks: int) -> None:
    whole = layout_of(cache_of(1, 16), 1)
    assert fingerprint(layout_of(cache_of(ranks, 32), ranks)) == fingerprint(whole)
    assert [part.shape[0] for part in whole.parts if part.name in ("k", "kv")] == list(HEADS.values())


def test_heads_that_nobody_counts_make_another_layout() -> None:
    """A layer of two heads on four ranks looks like one of one, or of four."""
    guessed = cache_of(4, 16).layout("r", 4)
    assert next(part for part in guessed.parts if part.layer == 2).shape[0] == 4
    assert fingerprint(guessed) != fingerprint(layout_of(cache_of(1, 16), 1))


@pytest.mark.parametrize("ranks", [-1, 65])
def test_more_ranks_than_there_can_be(ranks: int) -> None:
    deals = Deals(layout_of(cache_of(2, 16), 2), 1, 2)
    said = f"tensor parallelism of {ranks} on the other side; expected 1 to 64"
    assert (deals.give(ranks).refusal, deals.take(ranks).refusal) == (said, said)


async def test_a_rank_from_which_nobody_takes_holds_nothing() -> None:
    async with two(8, 1) as (far, _home):
        heard = Heard(far)
        far.step(offers=[Offer("t", LENGTH, LINK, 0, 0, 1)])
        takers = [bool(worker.deals.give(1).layouts) for worker in far.workers]
        assert takers == [True] * 8, "each has one head of the first layer"
        far.step(holds=[Hold("prefill", "t", 9)])
        few = [worker.deals for worker in far.workers]
        given = [[len(deals.give(1).slices.get((layer, "k"), ())) for deals in few] for layer in (0, 1, 2, 3)]
        assert given == [[1] * 8, [1, 0] * 4, [1, 0, 0, 0] * 2, [1] + [0] * 7]
        assert [len(deals.give(1).slices.get((4, "kv"), ())) for deals in few] == [1] + [0] * 7, "MLA: one owner"
        assert not heard().sent


async def test_states_are_refused_by_name_on_both_sides() -> None:
    async with two(2, 1, states=True) as (far, home):
        at_far, at_home = Heard(far), Heard(home)
        home.step(receives=[Receive(far.params("t", home), LENGTH, 0, 0)])
        prefill(far, "t", 1)
        said = "layer 5 conv.0: a state of 2 ranks cannot be given to 1; run both sides with the same"
        await until(lambda: at_home().report.failed)
        assert said in at_home.report.failed["t"]
        await until(lambda: len(at_far().sent) == 2)
        for worker in far.workers:
            outcome = await worker.mover.outgoing.outcome("t", 1)
            assert outcome is not None
            assert outcome.cause == "refused"
            assert said in outcome.detail
        assert not any(w.mover.transport.in_use or w.mover.credits.taken_bytes for w in far.workers + home.workers)


async def test_kv_that_is_held_for_another_number_of_ranks() -> None:
    async with two(2, 4) as (far, home):
        heard = Heard(home)
        home.step(receives=[Receive(far.params("t", home, receivers=0), LENGTH, 0, 0)])
        await until(lambda: heard().report.failed)
        said = "layout: tensor parallelism of 4 here, but the sender (2) holds the KV for 2"
        assert heard.report.failed == {"t": said}


def open_(mover: Any) -> bool:
    receiving = mover.incoming._receivings.get("t")
    return receiving is not None and receiving.machine.state is ReceiverState.RECEIVING


async def test_one_share_that_fails_ends_them_all() -> None:
    async with two(1, 4) as (far, home):
        at_far, at_home = Heard(far), Heard(home)
        home.step(receives=[Receive(far.params("t", home), LENGTH, 0, 0)])
        prefill(far, "t", 4, STEPS[:1])
        mover = home.workers[2].mover
        await until(lambda: all(open_(worker.mover) for worker in home.workers))
        mover.stop("t", "load", "no more room")
        await until(lambda: at_far().sent)
        await until(lambda: len(at_home().report.failed) and not any(w.mover.transport.in_use for w in home.workers))
        outcome = await far.workers[0].mover.outgoing.outcome("t", 1)
        assert outcome is not None
        assert (outcome.cause, outcome.detail) == ("load", "no more room")
        assert far.workers[0].mover.transport.in_use == 0
        assert (at_far.moved()["transfers"], at_home.moved()["failures"]) == (1, 4)


async def test_a_share_is_fetched_once() -> None:
    """The ticket is for the transfer; each rank's session binds that rank's share only."""
    async with two(1, 2) as (far, home):
        params = far.params("t", home)
        home.step(receives=[Receive(params, LENGTH, 0, 0)])
        await until(lambda: far.workers[0].mover.transport.greeter.parked == 4)
        thief = Node("home-node", 2, 16, far.network, far.tasks)
        heard = Heard(thief)
        thief.workers[1].side.begin(Orders(receives=[Receive(params, LENGTH, 0, 0)]))
        await until(lambda: heard().report.failed)
        assert "the ticket is in use by another receiver session" in heard.report.failed["t"]
        await thief.close()
