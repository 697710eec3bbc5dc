"""The failure walk: for every state that the tables have, every fault, at the moment when a machine enters that state.

The list of cases is made from the tables, so a new state is walked without anybody writing a case. It knows the
tables, the grid and how to hurt it; what must hold afterwards is the test's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any

from prfaas.core.routing.request import Life, RequestLife
from prfaas.core.transfer.receiver import Receiver, ReceiverState
from prfaas.core.transfer.sender import Sender, SenderState
from prfaas.testing.grid import Grid
from prfaas.testing.noderig import Node
from prfaas.transport.stream.transport import StreamTransport


class Fault(StrEnum):
    """What happens. `gone`: as by SIGKILL, without a word; `cut`: every data connection is reset, once."""

    PREFILL_NODE_GONE = "prefill node gone"
    DECODE_NODE_GONE = "decode node gone"
    SERVICE_GONE = "prefill service gone"
    CUT = "data connections cut"
    PREFILL_STALLS = "prefill node stalls"
    DECODE_STALLS = "decode node stalls"
    SLOW = "all nodes slow"
    CLIENT_LEAVES = "client leaves"
    DEADLINE = "everything stalls to the deadline"


class End(StrEnum):
    """How a case may end, for the client."""

    RIGHT = "right answer"
    DEADLINE = "504 at the deadline"
    BROKEN = "stream ends with an `error` event"
    FREED = "nobody is left to tell"


MACHINES: tuple[Any, ...] = (RequestLife, Receiver, Sender)
KV_IS_THERE = (Life.ANSWERING, Life.WHOLE, ReceiverState.LANDED, SenderState.FINISHED, SenderState.LANDED)
"""States in which no prefill is needed any more."""


@dataclass(frozen=True, slots=True)
class Case:
    """`fault` when a machine of `kind` enters `state`."""

    kind: Any
    state: Enum
    fault: Fault

    def __str__(self) -> str:
        return f"{table_of(self.kind).name}-{self.state.name}-{self.fault.name.lower()}"


def table_of(kind: Any) -> Any:
    """The table of a machine's class."""
    return getattr(kind, "TABLE", None) or kind.table


def promised(case: Case) -> tuple[End, ...]:
    """How `case` may end; nothing else is allowed, whatever the timing. All that was held is free again in any case."""
    answering = case.state is Life.ANSWERING
    match case.fault:
        case Fault.CLIENT_LEAVES:
            return (End.FREED,)
        case Fault.DEADLINE | Fault.DECODE_STALLS:
            return (End.BROKEN,) if answering else (End.DEADLINE,)
        case Fault.DECODE_NODE_GONE:
            return (End.BROKEN,) if answering else (End.RIGHT,)
        case Fault.PREFILL_STALLS:
            return (End.RIGHT,) if case.state in KV_IS_THERE else (End.DEADLINE,)
        case Fault.PREFILL_NODE_GONE | Fault.SERVICE_GONE | Fault.CUT | Fault.SLOW:
            return (End.RIGHT,)


def matrix() -> str:
    """The promises as markdown, a table for each machine: faults down, states across."""
    lines = []
    for kind in MACHINES:
        states = list(dict.fromkeys(case.state for case in cases() if case.kind is kind))
        lines += [f"### When the {table_of(kind).name} is in the state", ""]
        lines += ["| | " + " | ".join(state.name for state in states) + " |", "|---" * (len(states) + 1) + "|"]
        for fault in Fault:
            ends = [" or ".join(promised(Case(kind, state, fault))) for state in states]
            lines.append(f"| {fault.value} | " + " | ".join(ends) + " |")
        lines.append("")
    return "\n".join(lines)


def cases() -> list[Case]:
    """Every state in which a machine can rest, with every fault. A request does not rest in NEW."""
    found = []
    for kind in MACHINES:
        table = table_of(kind)
        for state in table.states:
            if state not in table.ends and state is not Life.NEW:
                found += [Case(kind, state, fault) for fault in Fault]
    return found


@contextlib.contextmanager
def when_entered(case: Case, act: Callable[[], None]) -> Iterator[list[str]]:
    """Calls `act` once, soon after a machine of the case's kind has come to its state; the list is not empty then."""
    original = case.kind.handle
    fired: list[str] = []

    def handle(self: Any, now_ns: int, event: Any) -> Any:
        effects = original(self, now_ns, event)
        if self.state is case.state and not fired:
            fired.append(str(case))
            asyncio.get_running_loop().call_soon(act)
        return effects

    case.kind.handle = handle
    try:
        yield fired
    finally:
        case.kind.handle = original


class Hurt:
    """Does a fault to a grid. `lost` are the nodes that are gone; nothing is asked of them any more."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self.lost: list[Node] = []

    def do(self, fault: Fault, client: asyncio.Task[Any]) -> None:
        """Now."""
        grid = self._grid
        prefills, everybody = grid.far_nodes + grid.home_nodes, grid.far_nodes + grid.home_nodes + grid.decoders
        match fault:
            case Fault.PREFILL_NODE_GONE:
                self._vanish(grid.far_nodes[0])
            case Fault.DECODE_NODE_GONE:
                self._vanish(grid.decoders[0])
            case Fault.SERVICE_GONE:
                _hang_up(grid.service)
            case Fault.CUT:
                for node in everybody:
                    _reset(node)
            case Fault.PREFILL_STALLS:
                pace(prefills, None)
            case Fault.DECODE_STALLS:
                pace(grid.decoders, None)
            case Fault.SLOW:
                pace(everybody, 0.03)
            case Fault.CLIENT_LEAVES:
                client.cancel()
            case Fault.DEADLINE:
                pace(everybody, None)

    def _vanish(self, node: Node) -> None:
        """As a killed process looks from outside: connections reset, nothing listens, nothing is computed."""
        transport = node.transport
        assert isinstance(transport, StreamTransport)
        transport.close_listeners()
        _reset(node)
        _hang_up(node.listening)
        pace([node], None)
        self.lost.append(node)
        del self._grid.rig.nodes[node.identity.name]


def _reset(node: Node) -> None:
    assert isinstance(node.transport, StreamTransport)
    for connection in node.transport.connections:
        connection.reset()


def _hang_up(listening: Any) -> None:
    """Stop listening at once and reset what is connected, and soon again: some may just have been accepted."""
    runner = listening._runner
    for site in list(runner.sites):
        site._server.close()

    def reset() -> None:
        for handler in list(runner.server.connections if runner.server is not None else ()):
            if handler.transport is not None:
                handler.transport.abort()

    reset()
    for later_s in (0.0, 0.05):
        asyncio.get_running_loop().call_later(later_s, reset)


def pace(nodes: list[Node], pause_s: float | None) -> None:
    """Each step of the nodes' engines takes `pause_s` longer, or (None) for ever."""

    async def step(_step: int) -> None:
        await (asyncio.sleep(pause_s) if pause_s is not None else asyncio.Event().wait())

    for node in nodes:
        node.engine.before_chunk = node.engine.before_token = step


if __name__ == "__main__":
    print(matrix())
