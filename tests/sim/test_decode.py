"""Decode nodes: a token a step for everybody, who joins counts from the next step, memory and slots hold."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from prfaas.sim.decode import DecodeNode, DecodePool
from prfaas.sim.request import Request


class Rig:
    """A pool and its heap. `ended`: when each request's last token was made."""

    def __init__(self, nodes: int, batch: int, memory: int | None = None, step: int = 0) -> None:
        self.seq = count()
        self.heap: list[tuple[int, int, DecodeNode]] = []
        self.ended: dict[int, int] = {}
        self.pool = DecodePool(
            nodes,
            batch,
            memory,
            lambda batch, context: 10 * batch,
            step or None,
            lambda tokens: tokens,
            lambda at, pool, node: heappush(self.heap, (at, next(self.seq), node)),
        )

    def join(self, now_ns: int, number: int, output: int, tokens: int = 10) -> Request:
        self.until(now_ns)
        request = Request(number, 0, tokens, (0,), [tokens], [1], [0])
        request.ready(output, (), True)
        self.pool.join(now_ns, request)
        return request

    def until(self, now_ns: int = 1 << 60) -> None:
        while self.heap and self.heap[0][0] <= now_ns:
            at, _, node = heappop(self.heap)
            for request in self.pool.tick(at, node)[0]:
                assert request.number not in self.ended
                self.ended[request.number] = at


def test_one_sequence_takes_a_step_a_token() -> None:
    rig = Rig(1, 4, step=25)
    request = rig.join(100, 1, 4)
    rig.until()
    assert request.first_ns == 125
    assert rig.ended == {1: 200}


def test_who_comes_within_a_step_joins_at_its_end() -> None:
    rig = Rig(1, 4, step=25)
    rig.join(0, 1, 4)
    second = rig.join(30, 2, 2)
    rig.until()
    assert second.first_ns == 75
    assert rig.ended == {1: 100, 2: 100}


def test_a_larger_batch_is_slower_from_the_next_step_on() -> None:
    rig = Rig(1, 4)
    rig.join(0, 1, 3)  # steps of 10
    rig.join(5, 2, 3)  # from 10 on steps of 20
    rig.until()
    assert rig.ended == {1: 50, 2: 60}  # the last step is alone again


def test_slots_are_kept_and_the_first_to_come_is_the_first_to_be_let_in() -> None:
    rig = Rig(2, 1, step=10)
    requests = [rig.join(0, number, 5) for number in range(4)]
    assert [len(rig.pool), len(rig.pool.waiting)] == [2, 2]
    rig.until()
    assert rig.ended == {0: 50, 1: 50, 2: 100, 3: 100}
    assert [request.first_ns for request in requests] == [10, 10, 60, 60]


def test_memory_bounds_the_batch_but_one_always_runs() -> None:
    rig = Rig(1, 10, memory=30, step=10)
    rig.join(0, 1, 5, tokens=10)
    rig.join(0, 2, 5, tokens=10)
    rig.join(0, 3, 5, tokens=100)
    assert [len(rig.pool), len(rig.pool.waiting)] == [2, 1]
    rig.until()
    assert rig.ended == {1: 50, 2: 50, 3: 100}


def test_a_lost_node_gives_everybody_back() -> None:
    rig = Rig(1, 4, step=10)
    rig.join(0, 1, 5)
    rig.join(0, 2, 5)
    lost = rig.pool.lose(rig.pool.nodes[0])
    assert [request.number for request in lost] == [1, 2]
    rig.join(15, 3, 2)
    rig.until()
    assert rig.ended == {}
    rig.pool.nodes[0].up = True
    assert [request.number for request in rig.pool.admit(20)] == [3]
    rig.until()
    assert rig.ended == {3: 40}
