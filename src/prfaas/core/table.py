"""A state machine as a table: the rows are the code, and `docs/states.md` is printed from them.

It knows states, events and which method handles which pair. A pair that no row names is a bug (`InvariantError`).
A handler may only move to a state that its row lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from prfaas.core.errors import InvariantError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Row:
    """In `state`, on `event`: `handler` runs, then the machine is in one of `to`. `why` is for the reader."""

    state: Enum
    event: type
    to: tuple[Enum, ...]
    handler: str
    why: str


class Table:
    """Rows by (state, event). Filled by decorators in a machine's class body, read by `handle` and by the docs."""

    def __init__(self, name: str, states: type[Enum], start: Enum, ends: Iterable[Enum]) -> None:
        self.name = name
        self.states = states
        self.start = start
        self.ends = tuple(ends)
        self.rows: dict[tuple[Enum, type], Row] = {}

    def on(self, states: Iterable[Enum], event: type, to: Iterable[Enum], why: str) -> Callable[[F], F]:
        """Decorator: this method handles `event` in each of `states`. Raises InvariantError when a row is there."""
        wanted, targets = tuple(states), tuple(to)

        def add(method: F) -> F:
            for state in wanted:
                if (state, event) in self.rows:
                    raise InvariantError(f"{self.name}: two rows for {state.name} x {event.__name__}")
                self.rows[state, event] = Row(state, event, targets, method.__name__, why)
            return method

        return add

    def row(self, state: Enum, event: type, story: tuple[Any, ...] = ()) -> Row:
        """The row for the pair. Raises InvariantError when the table has none."""
        try:
            return self.rows[state, event]
        except KeyError:
            raise InvariantError(f"{self.name}: no row for {state.name} x {event.__name__}", story) from None

    def events(self) -> list[type]:
        """All events that some row names, in the order in which they were first named."""
        return list(dict.fromkeys(event for _, event in self.rows))
