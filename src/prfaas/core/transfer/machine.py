"""What the two transfer machines share: looking up the row, keeping the story, checking where a handler went."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar

from prfaas.core.errors import InvariantError
from prfaas.core.table import Table

Event = TypeVar("Event")
Effect = TypeVar("Effect")


class Machine(ABC, Generic[Event, Effect]):
    """A state, a table, and the last few things that happened."""

    table: ClassVar[Table]

    def __init__(self) -> None:
        self.state: Enum = self.table.start
        self._story: deque[tuple[int, str, str]] = deque(maxlen=24)

    @property
    def over(self) -> bool:
        """Whether the machine is in one of its end states."""
        return self.state in self.table.ends

    def handle(self, now_ns: int, event: Event) -> list[Effect]:
        """Let `event` happen at `now_ns`; what to do about it, in order. Raises InvariantError on a bug of ours."""
        row = self.table.row(self.state, type(event), tuple(self._story))
        self._story.append((now_ns, self.state.name, type(event).__name__))
        effects: list[Effect] = getattr(self, row.handler)(now_ns, event)
        if self.state not in row.to:
            raise self.bug(f"{row.state.name} x {row.event.__name__} may not lead to {self.state.name}")
        return effects

    @abstractmethod
    def validate(self) -> None:
        """Raise InvariantError when the machine contradicts itself."""

    def bug(self, what: str) -> InvariantError:
        """An InvariantError with the machine's name and story."""
        return InvariantError(f"{self.table.name}: {what}", tuple(self._story))

    def nothing(self, now_ns: int, event: Any) -> list[Effect]:
        """For rows whose event changes nothing in their state."""
        return []

    @staticmethod
    def ignore(table: Table, states: tuple[Enum, ...], events: tuple[type, ...], why: str) -> None:
        """Rows for `events` that are expected in `states` and change nothing there."""
        for state in states:
            for event in events:
                table.on((state,), event, (state,), why)(Machine.nothing)
