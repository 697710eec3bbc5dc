"""Outcomes as label values: words that our programs say are themselves, any other is `other`.

It knows the words; it does not know metrics or who says them. Codes are open, and peers send them: as label values
they would let a peer make as many time series as it likes. Logs show what was said.
"""

from __future__ import annotations

OTHER = "other"

KNOWN = frozenset(
    [
        "applied",
        "bad_reply",
        "body",
        "body_too_large",
        "broken_stream",
        "busy",
        "cancelled",
        "cannot_copy",
        "cannot_lend",
        "checksum",
        "closed",
        "context_length_exceeded",
        "copy",
        "copy_slower",
        "copy_unknown",
        "corrupt",
        "cut_off",
        "deadline",
        "deadline_exceeded",
        "direction",
        "duplicate",
        "duplicate_transfer",
        "ended",
        "engine",
        "epoch",
        "extent",
        "failed",
        "frame",
        "given_up",
        "held",
        "incomplete",
        "internal",
        "internal_error",
        "invalid_api_key",
        "invalid_json",
        "invalid_value",
        "kv_blocks_exceeded",
        "kv_transfer_failed",
        "landing_buffer_exceeded",
        "late",
        "layout",
        "layout_mismatch",
        "lease",
        "length",
        "lent",
        "line_too_long",
        "link_busy",
        "no_landing_credit",
        "no_link",
        "no_room",
        "node_lost",
        "not_found",
        "ok",
        "order",
        "prefix_gone",
        "queue_full",
        "refused",
        "reply_too_large",
        "session",
        "size",
        "stale_epoch",
        "starting",
        "ticket",
        "timeout",
        "too_many_loans",
        "too_many_requests",
        "unknown",
        "unreachable",
        "useless",
        "version",
        "wrong_kv",
    ]
)


def label(outcome: str) -> str:
    """`outcome`, or `OTHER` where none of our programs says that."""
    return outcome if outcome in KNOWN else OTHER
