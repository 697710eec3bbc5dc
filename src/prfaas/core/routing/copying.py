"""Whether a longer prefix that another cluster holds is copied before prefill, or computed again.

It knows times and bytes; it does not know what holds them.
"""

from __future__ import annotations

from prfaas.core.routing.uplink import Uplink


def copy_ns(now_ns: int, link: Uplink, kv_bytes: int) -> int:
    """How long `kv_bytes` more take to cross `link`, after what is on it."""
    return link.drain_ns(now_ns, link.unsent_bytes + kv_bytes) + link.rtt_ns


def with_copy_ns(now_ns: int, link: Uplink, kv_bytes: int, own_ns: int, shorter_ns: int) -> int | None:
    """How long copying and then computing the rest, `shorter_ns`, takes; None where computing all that is missing,
    `own_ns`, is as fast."""
    whole = copy_ns(now_ns, link, kv_bytes) + shorter_ns
    return whole if whole < own_ns else None
