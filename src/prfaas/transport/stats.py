"""What a transport counts, for whoever exports it: a protocol of hooks, and counters that implement it.

It knows names and numbers; it does not know metrics libraries. Hooks are called on the event loop and must not block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, Protocol

from prfaas.core.ids import LinkName
from prfaas.transport.base import Outcome

Side = Literal["sending", "receiving"]


class TransferStats(Protocol):
    """Hooks of one transport."""

    def sent(self, link: LinkName, size_bytes: int) -> None:
        """KV bytes were handed to a connection."""

    def received(self, link: LinkName, size_bytes: int) -> None:
        """KV bytes came in, duplicates included."""

    def requeued(self, link: LinkName, chunks: int) -> None:
        """Chunks leave again, because the connection that they were sent on broke."""

    def corrupt(self, link: LinkName) -> None:
        """A chunk's checksum was wrong."""

    def refused(self, code: str) -> None:
        """A handshake was refused here, with this code."""

    def connected(self) -> None:
        """A data connection was dialled (not one reused)."""

    def ended(self, link: LinkName, side: Side, outcome: Outcome) -> None:
        """A transfer holds nothing here any more."""


@dataclass(slots=True)
class Counters:
    """All of it, added up. Keys: links, codes, or (side, cause)."""

    sent_bytes: Counter[LinkName] = field(default_factory=Counter)
    received_bytes: Counter[LinkName] = field(default_factory=Counter)
    requeued_chunks: Counter[LinkName] = field(default_factory=Counter)
    corrupt_chunks: Counter[LinkName] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    ends: Counter[tuple[Side, str]] = field(default_factory=Counter)
    dialled: int = 0

    def sent(self, link: LinkName, size_bytes: int) -> None:
        self.sent_bytes[link] += size_bytes

    def received(self, link: LinkName, size_bytes: int) -> None:
        self.received_bytes[link] += size_bytes

    def requeued(self, link: LinkName, chunks: int) -> None:
        self.requeued_chunks[link] += chunks

    def corrupt(self, link: LinkName) -> None:
        self.corrupt_chunks[link] += 1

    def refused(self, code: str) -> None:
        self.refusals[code] += 1

    def connected(self) -> None:
        self.dialled += 1

    def ended(self, link: LinkName, side: Side, outcome: Outcome) -> None:
        self.ends[side, outcome.cause] += 1
