"""What faults do to things at present: as many as overlap, so that the end of one is not the end of all.

It knows things by a key and what each fault that holds makes of them, a number; which number is the worst its user
says.
"""

from __future__ import annotations

from collections.abc import Hashable


class Holding:
    """Of each thing the values of the faults that hold, equal ones as often as they hold."""

    def __init__(self) -> None:
        self._held: dict[Hashable, list[float]] = {}

    def begins(self, thing: Hashable, value: float = 0) -> None:
        """A fault that makes `value` of `thing` holds from now on."""
        self._held.setdefault(thing, []).append(value)

    def ends(self, thing: Hashable, value: float = 0) -> None:
        """One that began with `value` does not any more. Raises KeyError or ValueError when none did."""
        held = self._held[thing]
        held.remove(value)
        if not held:
            del self._held[thing]

    def of(self, thing: Hashable) -> tuple[float, ...]:
        """What holds, in the order in which it began; empty: the thing is as it should be."""
        return tuple(self._held.get(thing, ()))
