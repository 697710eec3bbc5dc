"""Who may send next on a paced link: one bucket a link, and lanes taking turns at it.

It knows links, sizes and lanes that wait; it does not know transfers. A link that was never named or paced is free.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from prfaas.core.agenda import Entry
from prfaas.core.ids import LinkName
from prfaas.core.transfer.pacing import Bucket
from prfaas.transport.stream.alarm import Alarm, Call
from prfaas.wire.messages import KIB, MIB

OVERHEAD_BYTES = 128
"""What one chunk costs beside its payload: header, head, and its share of packet headers."""

CHUNK_BYTES = MIB
_LEAST_CHUNK_BYTES = 16 * KIB
_CHUNK_NS = 4_000_000
"""On a slow link a chunk is what passes in this time, so that transfers alternate and a lease is used to its end."""


class Waiter(Protocol):
    """A lane."""

    def pump(self) -> None:
        """Send what may leave now."""


@dataclass(slots=True)
class _Paced:
    bucket: Bucket = field(default_factory=Bucket)
    queue: deque[Waiter] = field(default_factory=deque)
    turn: Waiter | None = None
    timer: Entry[Call] | None = None


class Pacer:
    """The paced links of one transport."""

    def __init__(self, alarm: Alarm, links: Iterable[LinkName]) -> None:
        self._alarm = alarm
        self._links = {link: _Paced() for link in links}

    def lease(self, link: LinkName, rate_bps: int, lease_ns: int, fence: int) -> None:
        """A lease of the link's rate came; the link is paced from now on."""
        paced = self._links.setdefault(link, _Paced())
        if paced.bucket.set_rate(self._alarm.clock(), rate_bps, lease_ns, fence):
            self._serve(paced)

    def chunk_bytes(self, link: LinkName) -> int:
        """How large a chunk should be on `link` now."""
        paced = self._links.get(link)
        rate_bps = paced.bucket.rate_bps(self._alarm.clock()) if paced is not None else 0
        if rate_bps == 0:
            return CHUNK_BYTES
        return min(CHUNK_BYTES, max(_LEAST_CHUNK_BYTES, rate_bps * _CHUNK_NS // 8_000_000_000))

    def allow(self, link: LinkName, size_bytes: int, waiter: Waiter) -> bool:
        """Whether `waiter` may send so much now; if not, its `pump` is called when it is its turn."""
        paced = self._links.get(link)
        if paced is None:
            return True
        if paced.queue and paced.turn is not waiter:
            if waiter not in paced.queue:
                paced.queue.append(waiter)
            return False
        paced.turn = None
        wait_ns = paced.bucket.take(self._alarm.clock(), size_bytes)
        if wait_ns == 0:
            return True
        if waiter not in paced.queue:
            paced.queue.appendleft(waiter)
        self._alarm.cancel(paced.timer)
        if wait_ns is not None:
            paced.timer = self._alarm.at(self._alarm.clock() + wait_ns, lambda: self._serve(paced))
        return False

    def _serve(self, paced: _Paced) -> None:
        while paced.queue:
            waiter = paced.turn = paced.queue.popleft()
            waiter.pump()
            paced.turn = None
            if paced.queue and paced.queue[0] is waiter:
                return
