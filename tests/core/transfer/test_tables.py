"""Every (state, event) pair has a row, every state can be reached, and handlers exist."""

from __future__ import annotations

import typing

import pytest

from prfaas.core.errors import InvariantError
from prfaas.core.table import Table
from prfaas.core.transfer import events as ev
from prfaas.core.transfer.machine import Machine
from prfaas.core.transfer.receiver import Receiver, ReceiverState
from prfaas.core.transfer.sender import Sender, SenderState
from prfaas.testing.kv import hybrid_layout

MACHINES = [(Receiver, ev.ReceiverEvent), (Sender, ev.SenderEvent)]


@pytest.mark.parametrize(("machine", "events"), MACHINES)
def test_every_pair_has_a_row(machine: type[Machine], events: object) -> None:
    table = machine.table
    wanted = {(state, event) for state in table.states for event in typing.get_args(events)}
    assert set(table.rows) == wanted


@pytest.mark.parametrize(("machine", "events"), MACHINES)
def test_rows_name_handlers_and_say_why(machine: type[Machine], events: object) -> None:
    for row in machine.table.rows.values():
        assert callable(getattr(machine, row.handler))
        assert row.why
        assert all(isinstance(state, machine.table.states) for state in row.to)


@pytest.mark.parametrize(("machine", "events"), MACHINES)
def test_ends_are_ends_and_everything_is_reachable(machine: type[Machine], events: object) -> None:
    table = machine.table
    for end in table.ends:
        assert {state for (at, _), row in table.rows.items() if at is end for state in row.to} == {end}
    reached, more = {table.start}, True
    while more:
        found = {state for (at, _), row in table.rows.items() if at in reached for state in row.to}
        more = not found <= reached
        reached |= found
    assert reached == set(table.states)


def test_a_handler_may_only_go_where_its_row_says() -> None:
    class Odd(Machine[ev.Start, object]):
        table = Table("odd", SenderState, SenderState.OFFERED, [SenderState.CLOSED])

        @table.on([SenderState.OFFERED], ev.Start, [SenderState.OFFERED], "stays")
        def _start(self, now_ns: int, event: ev.Start) -> list[object]:
            self.state = SenderState.LANDED
            return []

        def validate(self) -> None:
            """Nothing to contradict."""

    with pytest.raises(InvariantError, match="may not lead to LANDED"):
        Odd().handle(0, ev.Start())


def test_applied_before_landed_is_our_callers_bug() -> None:
    receiver = Receiver(hybrid_layout(), 10, 0, peers=1, connections=1, deadline_ns=1)
    with pytest.raises(InvariantError, match="applied before it landed"):
        receiver.handle(0, ev.Applied())
    assert receiver.state is ReceiverState.DIALLING
