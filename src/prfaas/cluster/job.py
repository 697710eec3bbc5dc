"""One prefill job of a cluster's head, from being asked for to its last word.

It knows the request and the updates on their way to who asked; it does not know nodes or the queue.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec

from prfaas.core.ids import Epoch, NodeName
from prfaas.runtime.driver import loop_now_ns
from prfaas.wire.control import PrefillRequest, PrefillUpdate, PrefixSource


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
    _offer: asyncio.Future[PrefixSource | None] = field(init=False)

    def __post_init__(self) -> None:
        self._offer = asyncio.get_running_loop().create_future()
        if not self.request.prefix_tokens:
            self._offer.set_result(None)

    def supply(self, source: PrefixSource | None) -> bool:
        """What the node may fetch first. False when it does not wait for that (any more)."""
        if self._offer.done():
            return False
        self._offer.set_result(source)
        return True

    def decline(self) -> None:
        """The node fetches nothing: whatever is offered from now on is late."""
        if not self._offer.done():
            self._offer.set_result(None)

    async def supplied(self) -> PrefixSource | None:
        """What the node may fetch first: waits as long as that may pay, which is so much less left for fetching."""
        began_ns, most_ms = loop_now_ns(), self.request.prefix_ms
        if not self._offer.done():
            await asyncio.wait({self._offer}, timeout=most_ms / 1000)
        self.decline()
        source, left_ms = self._offer.result(), most_ms - (loop_now_ns() - began_ns) // 1_000_000
        return msgspec.structs.replace(source, deadline_ms=left_ms) if source is not None and left_ms > 0 else None

    def say(self, update: PrefillUpdate) -> None:
        """Tell who asked."""
        self.updates.put_nowait(update)

    def fail(self, code: str, detail: str) -> None:
        """The last word, a bad one."""
        self.say(PrefillUpdate("failed", code=code, detail=detail))
