"""What a head makes of its looks at a member, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
import structlog

from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.roster import ListedNode, Roster, Sight
from prfaas.core.errors import PeerFailure
from prfaas.core.ids import NodeName
from prfaas.core.membership.effects import Lost
from prfaas.core.membership.members import MemberPolicy
from prfaas.runtime.metrics import Metrics
from prfaas.testing.clock import run_virtual
from prfaas.wire.control import NodeInfo

NODE = NodeAddress(NodeName("p"), "http://127.0.0.1:1")
INFO = NodeInfo("p", "far", "prefill", 1, "m", "", 1000, 1, [])


class Client:
    """Answers as it is told."""

    def __init__(self, answer: Callable[[float], NodeInfo]) -> None:
        self.node, self.answer = NODE, answer

    async def info(self, timeout_s: float) -> NodeInfo:
        return self.answer(timeout_s)


class Workers:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.sights: list[bool] = []
        self.unseen_at: list[float] = []
        self.lost_at: list[float] = []

    def member(self, sight: Sight) -> None:
        self.sights.append(sight.info is not None)
        if sight.info is None:
            self.unseen_at.append(asyncio.get_running_loop().time())

    def lost(self, lost: Lost) -> None:
        self.lost_at.append(asyncio.get_running_loop().time())

    def gone(self, node: NodeName, cause: str) -> None: ...

    def running(self, node: NodeName) -> int:
        return 0


def watched(answer: Callable[[float], NodeInfo], seconds: float, lease_s: float) -> Workers:
    workers = Workers()

    async def main() -> None:
        roster = Roster(
            MemberPolicy("far", "m", ("prefill",)),
            [ListedNode("prefill", NODE)],
            lambda address: cast("NodeClient", Client(answer)),
            Metrics(),
            lease_ns=int(lease_s * 1e9),
        )
        roster.serve("prefill", workers)
        task = asyncio.create_task(roster.run())
        await asyncio.sleep(seconds)
        roster.validate()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run_virtual(main())
    return workers


def answers(*, late: range = range(0), dead: range = range(0)) -> Callable[[float], NodeInfo]:
    """The looks of those numbers take too long, or find nobody."""
    looks = iter(range(1 << 30))

    def answer(timeout_s: float) -> NodeInfo:
        nth = next(looks)
        if nth in late:
            raise PeerFailure("timeout", "GET took too long")
        if nth in dead:
            raise PeerFailure("unreachable", "connection refused")
        return INFO

    return answer


def test_one_slow_answer_is_no_news() -> None:
    workers = watched(answers(late=range(3, 5)), 10, lease_s=30)
    assert set(workers.sights) == {True}
    assert not workers.lost_at


def test_silence_for_a_quarter_of_the_lease_ends_new_work_and_silence_for_all_of_it_what_runs() -> None:
    workers = watched(answers(late=range(1, 1 << 20)), 50, lease_s=30)
    assert 7.5 <= workers.unseen_at[0] <= 9
    assert [round(at) for at in workers.lost_at] == [30]


@pytest.mark.parametrize("lease_s", [5, 30])
def test_a_node_that_cannot_be_reached_takes_no_work_at_once(lease_s: float) -> None:
    workers = watched(answers(dead=range(2, 3)), 5, lease_s)
    assert workers.unseen_at == [1.0]
    assert workers.sights[-1]


def test_why_a_node_never_came_is_in_the_log_once() -> None:
    with structlog.testing.capture_logs() as logs:
        watched(answers(dead=range(1 << 20)), 5, lease_s=30)
    told = [entry for entry in logs if entry["event"] == "member cannot be seen"]
    assert [entry["trouble"] for entry in told] == ["unreachable: connection refused"]
