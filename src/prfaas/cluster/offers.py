"""Offers of prefixes as peers send them: whether a prefill node could make anything of one.

It knows their bounds, which are those of nodes; it does not know prefills, or who offers. What a node would refuse is
refused before it is asked, for an offer that is wrong must not fail the prefill.
"""

from __future__ import annotations

from prfaas.wire.control import PrefixSource

MAX_ID_CHARS = 256
MAX_HOST_CHARS = 255
MAX_TICKET_CHARS = 4096
MAX_RANKS = 256
MAX_CONNECTIONS = 64
MAX_TOKENS = 1 << 32
MAX_MS = 1 << 40


def misfit(transfer: str, offer: PrefixSource) -> str:
    """What is wrong with `offer` for the prefill `transfer`: what was got and what was expected; "" when nothing is."""
    name = offer.transfer_id
    if not 1 <= len(name) <= MAX_ID_CHARS or name == transfer:
        return f"transfer_id: got {name[:MAX_ID_CHARS]!r}, expected one of its own, of 1 to {MAX_ID_CHARS} characters"
    if len(offer.link) > MAX_ID_CHARS:
        return f"link: got {len(offer.link)} characters, expected at most {MAX_ID_CHARS}"
    if not 1 <= len(offer.ticket) <= MAX_TICKET_CHARS:
        return f"ticket: got {len(offer.ticket)} characters, expected 1 to {MAX_TICKET_CHARS}"
    if not 1 <= len(offer.remote) <= MAX_RANKS:
        return f"remote: got {len(offer.remote)} addresses, expected 1 to {MAX_RANKS}"
    for at in offer.remote:
        if not 1 <= len(at.host) <= MAX_HOST_CHARS or not 1 <= at.port <= 65535:
            return f"remote: got {at.host[:MAX_HOST_CHARS]!r} port {at.port}, expected a host and a port up to 65535"
    for field, got, most in (
        ("length", offer.length, MAX_TOKENS),
        ("deadline_ms", offer.deadline_ms, MAX_MS),
        ("connections", offer.connections, MAX_CONNECTIONS),
    ):
        if not 1 <= got <= most:
            return f"{field}: got {got}, expected 1 to {most}"
    return ""
