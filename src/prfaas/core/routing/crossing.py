"""KV that is on its way over one link: an estimate of what has not arrived, since nobody tells.

It knows when each transfer began, when its prefill should end and how large it is; it does not know what has crossed.
KV leaves while it is made, so what is not made has not left; and no more leaves than the line carries.
"""

from __future__ import annotations

from prfaas.core.ids import TransferId
from prfaas.core.routing.uplink import BITS_NS, Uplink


class Crossing:
    """Keeps `unsent_bytes` of `uplink`."""

    __slots__ = ("_at_ns", "_flows", "_whole", "uplink")

    def __init__(self, uplink: Uplink) -> None:
        self.uplink = uplink
        self._flows: dict[TransferId, tuple[int, int, int]] = {}
        self._whole = 0
        self._at_ns = 0

    def __len__(self) -> int:
        return len(self._flows)

    def begin(self, now_ns: int, transfer: TransferId, end_ns: int, kv_bytes: int) -> None:
        """A prefill began, which should end at `end_ns`."""
        self.book(now_ns)
        self._flows[transfer] = (now_ns, end_ns, kv_bytes)
        self._whole += kv_bytes
        self.uplink.unsent_bytes += kv_bytes

    def end(self, now_ns: int, transfer: TransferId) -> None:
        """All of it has arrived, or will not. Harmless when it did not begin."""
        self.book(now_ns)
        flow = self._flows.pop(transfer, None)
        if flow is not None:
            self._whole -= flow[2]
            self.uplink.unsent_bytes = min(self.uplink.unsent_bytes, self._whole)

    def book(self, now_ns: int) -> None:
        """Count what has probably left until now: as much as the line carried, but nothing that is not made yet."""
        uplink, past = self.uplink, now_ns - self._at_ns
        self._at_ns = now_ns
        if not self._flows:
            uplink.unsent_bytes = 0
            return
        unmade = 0
        for begin, end, kv_bytes in self._flows.values():
            if now_ns < end:
                unmade += kv_bytes * (end - now_ns) // (end - begin)
        carried = self._whole if uplink.now_bps is None else uplink.now_bps * past // BITS_NS
        uplink.unsent_bytes = min(self._whole, max(unmade, uplink.unsent_bytes - carried))
