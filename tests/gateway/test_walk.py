"""The failure walk: each case ends in a right answer by another way, or in one clear error within the deadline; no
wrong token, no hang, and everything that was held is free again. The cases are made from the state tables."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from prfaas.core.ids import Epoch, NodeName
from prfaas.core.routing.request import Life
from prfaas.runtime.metrics import Metrics
from prfaas.testing.bytemodel import write_byte_model
from prfaas.testing.grid import two_clusters
from prfaas.testing.noderig import SECRET, Answer, Node, Rig
from prfaas.testing.walk import Case, End, Fault, Hurt, cases, matrix, pace, promised, when_entered
from prfaas.transport.metrics import MetricStats
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.tcp import TcpTransport

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(60),
    # A server that closes while it accepts drops the socket it has in hand: asyncio's, and only as we play a SIGKILL.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

DEADLINE_MS, GRACE_S, TOKENS = 4000, 4.0, 6
STALL_MS = {Fault.DEADLINE: 1500, Fault.PREFILL_STALLS: 1500, Fault.DECODE_STALLS: 1500}


async def over_tcp(rig: Rig, name: str, role: str) -> Node:
    epoch = Epoch(time.time_ns())
    transport = TcpTransport(
        NodeName(name), epoch, SECRET.encode(), stats=MetricStats(Metrics()), limits=TransportLimits()
    )
    return await rig.node(name, role, epoch=epoch, transport=transport)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", cases(), ids=str)
async def test_the_walk(tmp_path: Path, case: Case) -> None:
    prompt: str | list[int] = [65] if case.state is Life.WHOLE else "x" * 120
    stream = case.state is Life.ANSWERING
    async with AsyncExitStack() as stack:
        rig = Rig(write_byte_model(tmp_path / "model"), stack)
        far = [await over_tcp(rig, "far-p", "prefill")]
        home = [await over_tcp(rig, "home-p", "prefill")]
        decoders = [await over_tcp(rig, "home-d", "decode"), await over_tcp(rig, "home-e", "decode")]
        async with two_clusters(rig, far=far, home=home, decoders=decoders) as grid:
            right = (await decoders[1].complete(prompt, max_tokens=TOKENS)).text
            pace([*far, *home, *decoders], 0.004)  # so that there is a time between the first chunk and the last
            hurt = Hurt(grid)
            deadline_ms = STALL_MS.get(case.fault, DEADLINE_MS)
            asked = asyncio.create_task(
                grid.complete(
                    prompt, headers={"x-prfaas-deadline-ms": str(deadline_ms)}, max_tokens=TOKENS, stream=stream
                )
            )
            with when_entered(case, lambda: hurt.do(case.fault, asked)) as fired:
                await asyncio.wait({asked}, timeout=deadline_ms / 1000 + GRACE_S)
                assert asked.done(), "a hang: past the deadline and its grace"
            assert fired, "no machine came to this state"
            assert ended(asked, right) in promised(case)
            await grid.settled()
            for node in hurt.lost:
                await node.server.close()


def ended(asked: asyncio.Task[Answer], right: str) -> End:
    """How it ended; AssertionError when it is none of the ways in which anything may end."""
    if asked.cancelled():
        return End.FREED
    answer = asked.result()
    if answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream"):
        if not answer.events[-1].is_done:
            assert answer.events[-1].name == "error", "neither an end mark nor an error"
            shown = replace(answer, body=answer.body.partition(b"event: error")[0])
            assert right.startswith(shown.text), "a wrong token before the error"
            return End.BROKEN
        assert answer.text == right
        return End.RIGHT
    if answer.status == 200:
        assert answer.text == right
        return End.RIGHT
    assert answer.status == 504, answer.body
    assert answer.json["error"]["message"]
    return End.DEADLINE


def test_the_page_shows_the_promises() -> None:
    page = Path(__file__).parents[2] / "docs/failure.md"
    assert matrix() in page.read_text(), "docs/failure.md: put in what `python -m prfaas.testing.walk` prints"
