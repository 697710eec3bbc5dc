"""One prefill job of a cluster's head, from being asked for to its last word.

It knows the request and the updates on their way to who asked; it does not know nodes or the queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from prfaas.core.ids import Epoch, NodeName
from prfaas.wire.control import PrefillRequest, PrefillUpdate


@dataclass(slots=True)
class Job:
    """`updates` ends with `done` or `failed`. `leg` is the call to the node while it runs, `given` the node and its
    incarnation. `answered_ns`: after which time the node had computed; `node_ns`: of its time, what that took, if it
    says; `cached`: tokens that it had kept."""

    request: PrefillRequest
    deadline_ns: int
    updates: asyncio.Queue[PrefillUpdate] = field(default_factory=asyncio.Queue)
    leg: asyncio.Task[bool] | None = None
    given: tuple[NodeName, Epoch] | None = None
    answered_ns: int | None = None
    node_ns: int | None = None
    cached: int = 0

    def say(self, update: PrefillUpdate) -> None:
        """Tell who asked."""
        self.updates.put_nowait(update)

    def fail(self, code: str, detail: str) -> None:
        """The last word, a bad one."""
        self.say(PrefillUpdate("failed", code=code, detail=detail))
