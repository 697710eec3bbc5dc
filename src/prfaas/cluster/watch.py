"""Watching nodes: asks each one what it is, again and again, and tells whoever listens.

It knows polling and the last answer; it does not know what a head does with it. A node that does not answer is
reported as not ready with the reason, once it failed and each time after. Nodes may come and go at any time.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.errors import RemoteError
from prfaas.core.ids import NodeName
from prfaas.wire.control import NodeInfo

T = TypeVar("T")
LOOKS, LATE_S = 3, 0.05
"""A look that ended so long after its time-out was not awake for it; so often it is made again."""


@dataclass(frozen=True, slots=True)
class Report:
    """One look at one node: `info`, or None and the `trouble`; `late`: all that is known is that it took too long."""

    node: NodeName
    info: NodeInfo | None
    trouble: str = ""
    late: bool = False


@dataclass(slots=True)
class _Followed:
    client: NodeClient
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class NodeWatch:
    """Looks at each followed node every `period_s`; `listen(report)` is called after each look, on the event loop."""

    def __init__(self, period_s: float, listen: Callable[[Report], None]) -> None:
        self._period_s = period_s
        self._listen = listen
        self._followed: dict[NodeName, _Followed] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Looks, until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                for followed in self._followed.values():
                    self._start(followed)
                await asyncio.Event().wait()
        finally:
            self._group = None

    def follow(self, client: NodeClient) -> None:
        """Look at this node from now on. Its name must not be followed already."""
        followed = _Followed(client)
        self._followed[client.node.name] = followed
        self._start(followed)

    def unfollow(self, node: NodeName) -> None:
        """Look no more; no report of that node comes after this."""
        followed = self._followed.pop(node)
        if followed.task is not None:
            followed.task.cancel()

    def look_now(self, node: NodeName) -> None:
        """Something went wrong there: look before the period is over. Harmless when it is not followed."""
        if node in self._followed:
            self._followed[node].wake.set()

    def _start(self, followed: _Followed) -> None:
        if self._group is not None:
            # In a context of its own: what is bound to the log while a node joins is not of its looks.
            followed.task = self._group.create_task(
                self._look(followed), name=f"watch {followed.client.node.name}", context=contextvars.Context()
            )

    async def _look(self, followed: _Followed) -> None:
        client, wake = followed.client, followed.wake
        while True:
            wake.clear()  # before the look: who asks while it is under way gets another
            try:
                report = Report(client.node.name, await look(client.info, look_timeout_s(self._period_s)))
            except RemoteError as failure:
                report = Report(client.node.name, None, str(failure), failure.code == "timeout")
            self._listen(report)
            try:
                async with asyncio.timeout(self._period_s):
                    await wake.wait()
            except TimeoutError:
                pass


async def look(ask: Callable[[float], Awaitable[T]], timeout_s: float) -> T:
    """`ask(timeout_s)`; once more when it was this program that stood still: the answer may have been here.

    Raises RemoteError, as the last one did.
    """
    loop, looks = asyncio.get_running_loop(), 0
    while True:
        looks, began_s = looks + 1, loop.time()
        try:
            return await ask(timeout_s)
        except RemoteError:
            if looks == LOOKS or loop.time() - began_s < timeout_s + LATE_S:
                raise


def look_timeout_s(period_s: float) -> float:
    """How long one look may take."""
    return max(1.0, period_s * 2)
