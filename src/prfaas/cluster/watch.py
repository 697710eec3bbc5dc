"""Watching nodes: asks each one what it is, again and again, and tells whoever listens.

It knows polling and the last answer; it does not know what a head does with it. A node that does not answer is
reported as not ready with the reason, once it failed and each time after.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prfaas.cluster.nodeclient import NodeClient
from prfaas.core.errors import RemoteError
from prfaas.core.ids import NodeName
from prfaas.wire.control import NodeInfo


@dataclass(frozen=True, slots=True)
class Report:
    """One look at one node: `info`, or None and the `trouble`."""

    node: NodeName
    info: NodeInfo | None
    trouble: str = ""


class NodeWatch:
    """Polls `clients` every `period_s`; `listen(report)` is called after each look, on the event loop."""

    def __init__(self, clients: Sequence[NodeClient], period_s: float, listen: Callable[[Report], None]) -> None:
        self._clients = clients
        self._period_s = period_s
        self._listen = listen
        self._wake: dict[NodeName, asyncio.Event] = {client.node.name: asyncio.Event() for client in clients}

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(self._follow(client), name=f"watch {client.node.name}")

    def look_now(self, node: NodeName) -> None:
        """Something went wrong there: look before the period is over."""
        self._wake[node].set()

    async def _follow(self, client: NodeClient) -> None:
        wake = self._wake[client.node.name]
        while True:
            try:
                report = Report(client.node.name, await client.info(timeout_s=max(1.0, self._period_s * 2)))
            except RemoteError as failure:
                report = Report(client.node.name, None, str(failure))
            self._listen(report)
            wake.clear()
            try:
                async with asyncio.timeout(self._period_s):
                    await wake.wait()
            except TimeoutError:
                pass
