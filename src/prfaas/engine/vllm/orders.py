"""What the scheduler tells the workers each step, and what they report back: plain values that cross processes.

It knows names, rows and blocks; it does not know who gives or follows an order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from prfaas.engine.vllm.groups import Rows
from prfaas.wire.control import TransferParams


@dataclass(frozen=True, slots=True)
class Offer:
    """Prefill side: `length` tokens of KV will be sent to whoever shows a ticket. `deadline_ms` is what is left;
    `receivers` as in TransferParams."""

    transfer: str
    length: int
    link: str
    epoch: int
    deadline_ms: int
    receivers: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Prefill side: what this step makes final, by group. `last`: nothing follows. `receivers` as the offer's."""

    transfer: str
    length: int
    rows: tuple[Rows | None, ...]
    states: tuple[int | None, ...]
    last: bool
    receivers: int = 0


@dataclass(frozen=True, slots=True)
class Hold:
    """Prefill side: `request` is done, its `blocks` blocks are held until `transfer` is over."""

    request: str
    transfer: str
    blocks: int


@dataclass(frozen=True, slots=True)
class Receive:
    """Decode side: dial, and receive what `held` tokens lack of `length`. `deadline_ms` is what is left."""

    params: TransferParams
    length: int
    held: int
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Load:
    """Decode side: put what landed into `request`'s blocks; `transfer` "" means that this load fails."""

    request: str
    transfer: str = ""
    length: int = 0
    held: int = 0
    rows: tuple[Rows | None, ...] = ()
    states: tuple[int | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Either side: give `transfer` up, whatever it has come to."""

    transfer: str
    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Pace:
    """Each worker may send on `link` at `rate_bps` bits a second, for `lease_ns` from now. A lower `fence` is stale."""

    link: str
    rate_bps: int
    lease_ns: int
    fence: int


@dataclass(slots=True)
class Orders:
    """One step's orders. `discards`: transfers that are to be received for the sender's sake, and dropped."""

    offers: list[Offer] = field(default_factory=list)
    saves: list[Save] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    receives: list[Receive] = field(default_factory=list)
    loads: list[Load] = field(default_factory=list)
    discards: list[str] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)
    paces: list[Pace] = field(default_factory=list)

    def __bool__(self) -> bool:
        begun = any((self.offers, self.receives, self.saves, self.loads))
        return begun or any((self.holds, self.discards, self.stops, self.paces))


@dataclass(slots=True)
class Report:
    """What happened to transfers since the last report, of one worker or of several added up.

    `landed` counts the workers where all has landed; `failed` says why, once is enough.
    """

    landed: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    paces: list[Pace] = field(default_factory=list)
    """What the first worker was told, for the others."""

    def __bool__(self) -> bool:
        return any((self.landed, self.failed, self.paces))

    def aggregate(self, other: Report) -> Report:
        """Both; vLLM's name for it."""
        return Report(self.landed + other.landed, {**other.failed, **self.failed}, self.paces + other.paces)
