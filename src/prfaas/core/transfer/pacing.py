"""Pace: how fast one node may send on one link (`Bucket`), and how a link's rate is leased to its nodes (`Shares`).

It knows bits, ns, leases and fences; it does not know who carries the messages. Both sides are strict about time: a
lease counts from its receipt on the node, and from the latest moment at which it can have been received on the
service.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SECOND = 1_000_000_000


class Bucket:
    """One node's pace on one link. What leaves in any window of w ns is at most rate * (w + burst) plus one take.

    Nothing leaves without a lease, nor what could not be through before the lease ends (unless no lease of this kind
    would be long enough: then it leaves, and is owed beyond the end). The burst makes up for what was
    late (timers, a receiver that was busy); after a real pause, of more than four bursts, it does not.
    """

    __slots__ = ("_at_ns", "_burst_ns", "_fence", "_lease_ns", "_owed", "_rate_bps", "_until_ns")

    def __init__(self, burst_ns: int = 5_000_000) -> None:
        self._burst_ns = burst_ns
        self._rate_bps = 0
        self._until_ns = 0
        self._lease_ns = 0
        self._fence = -1
        # In bits * SECOND, so that rate_bps * ns drains it without rounding. Below zero: line time left unused.
        self._owed = 0
        self._at_ns = 0

    def set_rate(self, now_ns: int, rate_bps: int, lease_ns: int, fence: int) -> bool:
        """Take a lease. False, and nothing changes, when `fence` is lower than one seen before."""
        if fence < self._fence:
            return False
        self._drain(now_ns)
        self._fence, self._rate_bps = fence, rate_bps
        self._lease_ns, self._until_ns = lease_ns, now_ns + lease_ns
        return True

    def rate_bps(self, now_ns: int) -> int:
        """The rate in force, 0 when the lease has lapsed."""
        return self._rate_bps if now_ns < self._until_ns else 0

    def take(self, now_ns: int, size_bytes: int) -> int | None:
        """0: send `size_bytes` now, they are booked. More: ask again in so many ns. None: not before a new lease."""
        self._drain(now_ns)
        rate = self.rate_bps(now_ns)
        if rate == 0:
            return None
        if self._owed > 0:
            wait_ns = -(-self._owed // rate)
            return wait_ns if now_ns + wait_ns < self._until_ns else None
        cost = size_bytes * 8 * SECOND
        through_ns = -(-(self._owed + cost) // rate)
        if now_ns + through_ns > self._until_ns and -(-cost // rate) <= self._lease_ns:
            return None
        self._owed += cost
        return 0

    def _drain(self, now_ns: int) -> None:
        passed = min(now_ns, self._until_ns) - self._at_ns
        if passed > 0:
            unused = passed * self._rate_bps - self._owed
            burst = self._burst_ns * self._rate_bps
            self._owed = -min(unused, burst) if unused <= 4 * burst else 0
        self._at_ns = max(self._at_ns, now_ns)


@dataclass(frozen=True, slots=True)
class Grant:
    """Tell `node` that it may send at `rate_bps` for `lease_ns` from receipt; answer with `acknowledge(fence)`."""

    node: str
    rate_bps: int
    lease_ns: int
    fence: int


@dataclass(slots=True)
class _Lease:
    fence: int
    rate_bps: int
    until_ns: int
    """When it is over at the latest, wherever it is."""
    acknowledged: bool = False


@dataclass(slots=True)
class _Node:
    transfers: int = 0
    leases: list[_Lease] = field(default_factory=list)
    """Those that may be in force, by fence: at most one acknowledged, then those on their way."""
    renew_ns: int = 0

    def committed_bps(self, now_ns: int) -> int:
        self.leases = [lease for lease in self.leases if lease.until_ns > now_ns]
        return max((lease.rate_bps for lease in self.leases), default=0)

    @property
    def newest_bps(self) -> int:
        return self.leases[-1].rate_bps if self.leases else 0


class Shares:
    """One link's rate, split among the nodes that have active transfers on it, by how many each has.

    What a node may be sending (the largest of its unexpired leases that are not superseded by an acknowledged one) is
    never given to another: the sum over nodes never exceeds `rate_bps`. `flight_ns` is how long a grant may take to
    arrive; one that takes longer must be dropped on the way. `first_fence` must exceed any fence of an earlier
    incarnation.
    """

    def __init__(self, rate_bps: int, lease_ns: int, flight_ns: int, first_fence: int = 0) -> None:
        self.rate_bps = rate_bps
        self.lease_ns = lease_ns
        self.flight_ns = flight_ns
        self._fence = first_fence
        self._nodes: dict[str, _Node] = {}

    def active(self, node: str, transfers: int) -> None:
        """`node` now has so many active transfers on the link; 0 takes its share away."""
        self._nodes.setdefault(node, _Node()).transfers = transfers

    def forget(self, node: str) -> None:
        """`node` is gone. Its share is free when its leases have ended; should it come back, it is told anew."""
        if node in self._nodes:
            self._nodes[node].transfers = self._nodes[node].renew_ns = 0

    def grants(self, now_ns: int) -> list[Grant]:
        """What to tell nodes now: renewals that are due, changed shares as far as room allows. In order of first
        sight."""
        total = sum(node.transfers for node in self._nodes.values())
        committed = {name: node.committed_bps(now_ns) for name, node in self._nodes.items()}
        room_bps = self.rate_bps - sum(committed.values())
        grants = []
        for name, node in list(self._nodes.items()):
            share = self.rate_bps * node.transfers // total if total else 0
            if node.transfers == 0 and committed[name] == 0:
                del self._nodes[name]
                continue
            rate = min(share, committed[name] + room_bps)
            if rate == node.newest_bps and (now_ns < node.renew_ns or rate == 0):
                continue
            self._fence += 1
            node.leases.append(_Lease(self._fence, rate, now_ns + self.flight_ns + self.lease_ns))
            node.renew_ns = now_ns + self.lease_ns // 3
            room_bps -= max(0, rate - committed[name])
            grants.append(Grant(name, rate, self.lease_ns, self._fence))
        return grants

    def acknowledge(self, now_ns: int, node: str, fence: int) -> None:
        """`node` has taken the lease with `fence`: older ones are void there, and this one began by now."""
        held = self._nodes.get(node)
        if held is None or all(lease.fence != fence for lease in held.leases):
            return
        held.leases = [lease for lease in held.leases if lease.fence >= fence]
        held.leases[0].acknowledged = True
        held.leases[0].until_ns = min(held.leases[0].until_ns, now_ns + self.lease_ns)

    def next_ns(self, now_ns: int) -> int | None:
        """When to ask for grants again, should nothing happen before; None when no node is known."""
        times = [node.renew_ns for node in self._nodes.values() if node.transfers]
        times += [lease.until_ns for node in self._nodes.values() for lease in node.leases]
        return max(now_ns + 1, min(times)) if times else None
