"""The one seam of every machine, and the pump that both drivers share.

It knows machines, the agenda and the order of events. It does not know where `now` comes from: the asyncio driver
(`runtime/driver`) and the virtual-time driver (`testing/virtual`) hand it in, and so agree exactly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from prfaas.core.agenda import Agenda, Entry

Ev = TypeVar("Ev")
Ev_contra = TypeVar("Ev_contra", contravariant=True)
Ef_co = TypeVar("Ef_co", covariant=True)
Ev_co = TypeVar("Ev_co", covariant=True)
Ef = TypeVar("Ef")


class Machine(Protocol[Ev_contra, Ef_co]):
    """Pure: all change comes in as an event, all action goes out as effects."""

    def handle(self, now_ns: int, event: Ev_contra) -> Sequence[Ef_co]:
        """What is to be done, in order, now that `event` has happened."""

    def validate(self) -> None:
        """Raises InvariantError when the machine is in a state that must not exist."""


@dataclass(frozen=True, slots=True)
class Arm(Generic[Ev_co]):
    """Effect of any machine: give me `event` at `at_ns`. Arming a key again replaces what it had."""

    key: Hashable
    at_ns: int
    event: Ev_co


@dataclass(frozen=True, slots=True)
class Disarm:
    """Effect of any machine: forget what `key` armed. Harmless when nothing is armed."""

    key: Hashable


class Pump(Generic[Ev, Ef]):
    """Feeds one machine: events in the order they came, timers by the agenda, effects to `perform`.

    `perform` may post further events; they are handled after the present one, never inside it.
    """

    def __init__(self, machine: Machine[Ev, Ef | Arm[Ev] | Disarm], perform: Callable[[int, Ef], None]) -> None:
        self.machine = machine
        self._perform = perform
        self._agenda: Agenda[tuple[Hashable | None, Ev]] = Agenda()
        self._armed: dict[Hashable, Entry[tuple[Hashable | None, Ev]]] = {}
        self._waiting: deque[Ev] = deque()
        self._busy = False

    def post(self, now_ns: int, event: Ev) -> None:
        """`event` has happened now."""
        self._waiting.append(event)
        if not self._busy:
            self._drain(now_ns)

    def later(self, at_ns: int, event: Ev, rank: int = 0) -> None:
        """`event` will happen at `at_ns`, whatever the machine arms or disarms."""
        self._agenda.add(at_ns, (None, event), rank)

    def next_at(self) -> int | None:
        """When `run_due` is wanted next, or None."""
        return self._agenda.next_at()

    def run_due(self, now_ns: int) -> None:
        """Post everything whose time has come, in the agenda's order."""
        while (due := self._agenda.pop_due(now_ns)) is not None:
            key, event = due
            if key is not None:
                del self._armed[key]
            self.post(now_ns, event)

    def _drain(self, now_ns: int) -> None:
        self._busy = True
        try:
            while self._waiting:
                for effect in self.machine.handle(now_ns, self._waiting.popleft()):
                    self._apply(now_ns, effect)
        finally:
            self._busy = False

    def _apply(self, now_ns: int, effect: Ef | Arm[Ev] | Disarm) -> None:
        if isinstance(effect, Arm):
            self._disarm(effect.key)
            self._armed[effect.key] = self._agenda.add(effect.at_ns, (effect.key, effect.event))
        elif isinstance(effect, Disarm):
            self._disarm(effect.key)
        else:
            self._perform(now_ns, effect)

    def _disarm(self, key: Hashable) -> None:
        entry = self._armed.pop(key, None)
        if entry is not None:
            self._agenda.cancel(entry)
