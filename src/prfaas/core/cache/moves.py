"""What moves between two tiers of a cache, and the requests that wait for it.

It knows block numbers and who waits; it does not know the tiers (`tiers`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `near[i]` to `far[i]` (`to_host`), or back. Block numbers of the accelerator, and of the host."""

    number: int
    to_host: bool
    near: tuple[int, ...]
    far: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """What the end of a move led to. `ready`: requests that may work now; `over`: requests that are no more, since what
    they were to resume from did not come: they may begin again."""

    ready: list[Hashable] = field(default_factory=list)
    over: list[Hashable] = field(default_factory=list)


class Work:
    """A request that has begun. `waits`: moves that read its blocks; `fetch`: what it resumes from, still to come."""

    __slots__ = ("fetch", "request", "room", "waits")

    def __init__(self, request: Hashable, room: int, fetch: Fetch | None) -> None:
        self.request = request
        self.room = room
        self.fetch = fetch
        self.waits: set[int] = set()


class Fetch:
    """The end of `chain`'s usable prefix on its way to the accelerator. `gained`: tokens that it adds. `work` is None
    once nobody waits for it."""

    __slots__ = ("chain", "gained", "move", "state", "work")

    def __init__(self, move: Move, chain: Sequence[int], state: list[int], gained: int) -> None:
        self.move = move
        self.chain = chain
        self.state = state
        self.gained = gained
        self.work: Work | None = None


@dataclass(frozen=True, slots=True)
class Saving:
    """A prefix on its way to the host."""

    move: Move
    chain: list[int]
    state: list[int]
    cold: bool
