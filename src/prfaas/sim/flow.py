"""One transfer on a line: how much there is of it, how fast it is made, how much has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prfaas.sim.line import Line


class Flow:
    """`kv_bytes` are made evenly from `began_ns` on, `speed` bytes a ns, after `before` bytes that were made earlier.
    `sent`: bytes that have left. `behind`: more is made than leaves. `until`: the line's turn at which a finished one
    is through; `live`: it was not aborted."""

    __slots__ = ("before", "began_ns", "behind", "item", "kv_bytes", "line", "live", "number", "sent", "speed", "until")

    def __init__(self, line: Line, number: int, item: object, kv_bytes: int, began_ns: int, speed: float) -> None:
        self.line = line
        self.number = number
        self.item = item
        self.kv_bytes = kv_bytes
        self.began_ns = began_ns
        self.speed = speed
        self.before = 0.0
        self.sent = 0.0
        self.behind = False
        self.until = -1.0
        self.live = True

    @property
    def left(self) -> int:
        """Bytes that have yet to leave, as the line last counted."""
        return int(self.kv_bytes - self.sent if self.until < 0 else self.until - self.line.turn)

    def made(self, now_ns: int) -> float:
        """Bytes that there are."""
        return min(float(self.kv_bytes), self.before + self.speed * (now_ns - self.began_ns))
