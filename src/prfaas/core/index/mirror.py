"""The mirror of another head's places: what its pages say, applied here, and which page to ask for next.

It knows pages, numbers and places; it does not know HTTP or waiting (`Failed`, and timers that it arms). A head speaks
for its own cluster only. Until all up to the head's last change was applied, everything of that cluster is unknown; so
it is when the head has not been heard for long.

A snapshot is read page by page while the head goes on: what changed meanwhile comes after it, from the log, since the
number that the first page bore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from prfaas.core.errors import InvariantError
from prfaas.core.ids import ClusterName
from prfaas.core.index.changes import Change, Closed, Marked, Opened
from prfaas.core.index.places import Known, Place
from prfaas.core.machine import Arm

MOST_PLACES = 65_536
"""Places of one cluster; more are passed over."""


@dataclass(frozen=True, slots=True)
class Query:
    """Ask for changes after number `since` of the head's incarnation `epoch` (0: whatever there is); or, where `after`
    is said, for the page of a snapshot that follows it."""

    epoch: int = 0
    since: int = 0
    after: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """What a head answers. `number`: of its last change that is in this page or before it (a snapshot's: when it
    began). `last`: of its last change at all. `snapshot`: these are not the changes asked for, but what is held;
    `first` is its first page, and `after`, if anything, says where the next one begins."""

    epoch: int
    number: int
    last: int
    changes: tuple[Change, ...]
    snapshot: bool = False
    first: bool = False
    after: str = ""


@dataclass(frozen=True, slots=True)
class Got:
    """The page that was asked for last."""

    page: Page


@dataclass(frozen=True, slots=True)
class Stale:
    """The timer: nothing was heard for long."""


@dataclass(frozen=True, slots=True)
class Do:
    """Effect: apply this."""

    change: Change


MirrorEvent = Got | Stale


class Mirror:
    """Of the places of `cluster`. Unheard for `stale_ns`, they are unknown."""

    def __init__(self, cluster: ClusterName, stale_ns: int) -> None:
        self.cluster = cluster
        self.query = Query()
        """What to ask for next."""
        self.current = False
        """Whether all that the head knew at its last page is applied here."""
        self._stale_ns = stale_ns
        self._said: dict[Place, Known] = {}
        self._out: list[Do | Arm[MirrorEvent]] = []

    def handle(self, now_ns: int, event: MirrorEvent) -> Sequence[Do | Arm[MirrorEvent]]:
        """What is to be done now that `event` has happened."""
        match event:
            case Got(page):
                self._got(page)
                self._out.append(Arm("stale", now_ns + self._stale_ns, Stale()))
            case Stale():
                self._lapse()
            case _:
                assert_never(event)
        out, self._out = self._out, []
        return out

    def validate(self) -> None:
        """Raises InvariantError when it contradicts itself."""
        if any(place.cluster != self.cluster for place in self._said):
            raise InvariantError("a mirror has a place of another cluster")
        if self.current and self.query.after:
            raise InvariantError("a mirror is current within a snapshot")

    def _got(self, page: Page) -> None:
        if page.first:
            for place in list(self._said):
                self._apply(Closed(place))
            self.current, self.query = False, Query(page.epoch, page.number)
        elif page.epoch != self.query.epoch:
            self.query = Query()  # of another incarnation, and not from its beginning: all anew
            return
        for change in page.changes:
            self._apply(change)
        if page.snapshot:
            self.query = replace(self.query, after=page.after)
            caught_up = not page.after and self.query.since >= page.last
        else:
            self.query = Query(page.epoch, page.number)
            caught_up = page.number >= page.last
        if caught_up and not self.current:
            self.current = True
            for place, known in self._said.items():
                self._out.append(Do(Marked(place, known)))

    def _apply(self, change: Change) -> None:
        place = change.place
        if place.cluster != self.cluster:
            return
        match change:
            case Opened(_, epoch, groups, known):
                if place not in self._said and len(self._said) >= MOST_PLACES:
                    return
                self._said[place] = known
                self._out.append(Do(Opened(place, epoch, groups, known if self.current else Known.UNKNOWN)))
                return
            case Marked(_, known) if place in self._said:
                self._said[place] = known
                if self.current:
                    self._out.append(Do(change))
                return
            case Closed():
                if self._said.pop(place, None) is not None:
                    self._out.append(Do(change))
                return
        if place in self._said:
            self._out.append(Do(change))

    def _lapse(self) -> None:
        """All is unknown, until a page says that nothing was missed, or what."""
        if self.current:
            self.current = False
            for place in self._said:
                self._out.append(Do(Marked(place, Known.UNKNOWN)))
