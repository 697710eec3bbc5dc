"""Changes of the index as values: what a follower finds, what a head passes on, and a bounded log of them.

It knows the index's operations; it does not know who applies or sends them. Every change may be applied twice, and a
later one of the same block wins, so a snapshot that is read piece by piece is right once the log since its beginning
has been applied too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import assert_never

from prfaas.core.errors import LocalError
from prfaas.core.ids import Epoch
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place

ENTRY_HASHES = 8
"""What an entry of the log weighs beside its hashes, in hashes."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A new incarnation, which holds nothing yet. `groups`: see `PrefixIndex.open`."""

    place: Place
    epoch: Epoch
    groups: Mapping[int, int] = field(default_factory=dict)
    known: Known = Known.UNKNOWN


@dataclass(frozen=True, slots=True)
class Closed:
    """The place is gone."""

    place: Place


@dataclass(frozen=True, slots=True)
class Marked:
    """So well is it known what the place holds."""

    place: Place
    known: Known


@dataclass(frozen=True, slots=True)
class Apart:
    """The place has a group that is kept apart; see `PrefixIndex.keep_apart`."""

    place: Place
    group: int
    needed: int


@dataclass(frozen=True, slots=True)
class Stored:
    """See `PrefixIndex.stored`."""

    place: Place
    hashes: tuple[int, ...]
    parent: int | None
    tier: str = ""
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """See `PrefixIndex.removed`."""

    place: Place
    hashes: tuple[int, ...]
    tier: str | None = None
    group: int | None = None


@dataclass(frozen=True, slots=True)
class Cleared:
    """The place holds nothing any more."""

    place: Place


Change = Opened | Closed | Marked | Apart | Stored | Removed | Cleared


def apply(index: PrefixIndex, change: Change) -> None:
    """Applies `change`. Raises LocalError for a place that is not open."""
    match change:
        case Stored(place, hashes, parent, tier, group):
            index.stored(place, hashes, parent, tier=tier, group=group)
        case Removed(place, hashes, tiers, group):
            index.removed(place, hashes, tier=tiers, group=group)
        case Cleared(place):
            index.cleared(place)
        case Marked(place, known):
            index.mark(place, known)
        case Apart(place, number, needed):
            index.keep_apart(place, number, needed)
        case Opened(place, epoch, groups, known):
            index.open(place, epoch, groups, known)
        case Closed(place):
            index.close(place)
        case _:
            assert_never(change)


class ChangeLog:
    """The last changes, numbered from 1; at most `most_hashes` hashes' worth, the oldest go first."""

    def __init__(self, most_hashes: int) -> None:
        if most_hashes < 1:
            raise LocalError(f"most_hashes: got {most_hashes}; expected at least 1")
        self._most = most_hashes
        self._entries: deque[Change] = deque()
        self._weight = 0
        self.last = 0
        """The number of the last change."""

    @property
    def first(self) -> int:
        """The number of the oldest change that is still there, or the next one's."""
        return self.last - len(self._entries) + 1

    def append(self, change: Change) -> None:
        """One more."""
        self._entries.append(change)
        self._weight += _weight(change)
        self.last += 1
        while self._weight > self._most:
            self._weight -= _weight(self._entries.popleft())

    def since(self, number: int, most_hashes: int) -> list[Change] | None:
        """Changes after `number`, in order, up to `most_hashes` hashes' worth and at least one; None when some of them
        are gone, or when there was never so high a number."""
        if not self.first - 1 <= number <= self.last:
            return None
        found: list[Change] = []
        weight = 0
        for change in self._after(number):
            weight += _weight(change)
            if found and weight > most_hashes:
                break
            found.append(change)
        return found

    def _after(self, number: int) -> Iterator[Change]:
        wanted = self.last - number
        newest_first: list[Change] = []
        for change in reversed(self._entries):
            if len(newest_first) == wanted:
                break
            newest_first.append(change)
        return reversed(newest_first)


def _weight(change: Change) -> int:
    return ENTRY_HASHES + (len(change.hashes) if isinstance(change, Stored | Removed) else 0)
