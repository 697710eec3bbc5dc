"""The seam between a node and what moves KV.

It knows transfers, extents, leases and outcomes. It does not know engines, HTTP or which transport is behind it. The
prefill side offers; the decode side dials and receives. Failure of the peer is raised as RemoteError by the awaiting
side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import LocalError
from prfaas.core.ids import LinkName, TransferId
from prfaas.core.transfer.extent import Extent


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a data listener is, one a rank."""

    host: str
    port: int


@dataclass(slots=True)
class LandedKV:
    """A complete cache that arrived: everything that `needed(layout, length, held)` names, each part in one buffer.

    `parts[layer, name]` is row-major and starts at row max(held, first_row(length)); for a state it is the value.
    `cached`: tokens that the sender did not compute for it, but had kept.
    """

    length: int
    held: int = 0
    parts: dict[tuple[int, str], bytearray] = field(default_factory=dict)
    cached: int = 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transfer ended on this side. `cause` is "applied" when all went well, else one lower-case word.

    On the sending side all went well as soon as the receiver owns the bytes (LANDED).
    """

    cause: str
    detail: str = ""
    bytes_moved: int = 0
    """KV bytes that crossed, those that came twice included."""
    moving_ns: int = 0
    """Time in which those bytes moved: first byte to last, not waiting for a receiver or the engine."""


class Sending(Protocol):
    """The prefill side of one transfer."""

    def put(self, extent: Extent, data: memoryview) -> None:
        """Queue `extent` to leave. Thread-safe; never blocks; keeps `data` until the receiver owns it (LANDED)."""

    def finish(self) -> None:
        """All extents were put. Called on the event loop, after the last `put`."""

    def abort(self, code: str, detail: str) -> None:
        """Stop: tell the receiver, drop what is held. Harmless after the end."""

    async def released(self) -> Outcome:
        """Waits until nothing is held any more (LANDED, or failed, cancelled, lease ended). Never raises."""


class Receiving(Protocol):
    """The decode side of one transfer."""

    async def landed(self) -> LandedKV:
        """Waits until everything is here and verified. Raises RemoteError with the cause when it cannot be."""

    def applied(self) -> None:
        """The engine has the KV; the transfer is over and its buffers are the engine's."""

    def cancel(self, code: str, detail: str) -> None:
        """Stop: tell the sender, drop what is held. Harmless after the end."""

    async def ended(self) -> Outcome:
        """Waits until the transfer is over on this side. Never raises."""


class InHand(LocalError):
    """A transfer of that name is still open here."""


class Transport(Protocol):
    """One node's end of all its links."""

    @property
    def in_use(self) -> int:
        """Transfers that hold anything here, either direction."""

    async def listen(self, host: str, port: int) -> Peer:
        """Accept data connections there (port 0: any); where it listens now. Raises OSError when it cannot."""

    def offer(
        self, transfer: TransferId, layout: KVLayout, length: int, link: LinkName, lease_ns: int, cached: int = 0
    ) -> Sending:
        """Begin to send `length` tokens' KV to whoever shows a valid ticket for `transfer`. See `LandedKV.cached`.

        A receiver that dialled before is admitted now. The lease is renewed by the receiver's life signs; when it
        ends, all is dropped. Raises InHand while anything of an earlier `transfer` is open.
        """

    def receive(
        self,
        transfer: TransferId,
        layout: KVLayout,
        length: int,
        remote: Sequence[Peer],
        ticket: str,
        *,
        held: int,
        connections: int,
        link: LinkName,
        deadline_ns: int,
    ) -> Receiving:
        """Dial `remote` and receive what `held` tokens lack of `length`. `deadline_ns` is on the transport's clock."""

    def pace(self, link: LinkName, rate_bps: int, lease_ns: int, fence: int) -> None:
        """Send on `link` at no more than `rate_bps` bits a second, until the lease ends. A lower fence is ignored."""

    async def close(self) -> None:
        """Fail what is open and close every socket."""
