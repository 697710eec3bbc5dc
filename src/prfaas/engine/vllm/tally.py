"""What transfers came to, as vLLM's statistics of connectors take it: plain sums that can be added up."""

from __future__ import annotations

from prfaas.transport.base import Outcome

SUMS = ("transfers", "failures", "cancelled", "bytes", "seconds")


class Tally:
    """Since it was last taken."""

    def __init__(self) -> None:
        self._sums = nothing()

    def count(self, outcome: Outcome, sent: bool) -> None:
        """One transfer ended."""
        self._sums["transfers"] += 1
        self._sums["failures"] += outcome.cause not in ("applied", "cancelled")
        self._sums["cancelled"] += outcome.cause == "cancelled"  # its request was aborted: the client left
        self._sums["bytes"] += outcome.bytes_moved
        self._sums["seconds"] += outcome.moving_ns / 1e9

    def take(self) -> dict[str, float]:
        """The sums, which begin anew; empty when nothing ended."""
        if not self._sums["transfers"]:
            return {}
        sums, self._sums = self._sums, nothing()
        return sums


def nothing() -> dict[str, float]:
    """No transfers."""
    return dict.fromkeys(SUMS, 0)


def added(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """Both together."""
    return {name: one.get(name, 0) + other.get(name, 0) for name in SUMS}
