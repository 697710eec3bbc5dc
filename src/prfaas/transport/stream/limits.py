"""Bounds of a transport: how many of what it holds for peers, and how long. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass, field

from prfaas.core.transfer.receiver import SECOND, Patience


@dataclass(frozen=True, slots=True)
class TransportLimits:
    """Times in ns."""

    connect_ns: int = 5 * SECOND
    """Until a dialled connection must be there."""
    hello_ns: int = 5 * SECOND
    """Until a new connection must have said HELLO."""
    idle_ns: int = 60 * SECOND
    """How long the dialling side keeps a connection without a transfer; the listening side keeps it half as long
    again."""
    park_ns: int = 60 * SECOND
    """How long a HELLO for a transfer that is not offered yet waits, when no ticket says."""
    forget_ns: int = 120 * SECOND
    """How long an ended transfer is remembered, so that late HELLOs are told."""
    greeting: int = 256
    """Connections that have not said HELLO; one more closes the oldest."""
    parked: int = 1024
    """Connections that wait for their transfer; one more is refused as busy."""
    connections: int = 8192
    """Accepted connections in all; one more is closed at once."""
    remembered: int = 65536
    """Sessions and ended transfers that are remembered; the oldest are forgotten."""
    idle_per_peer: int = 64
    patience: Patience = field(default_factory=Patience)
