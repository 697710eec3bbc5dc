"""Whether a longer prefix that another cluster holds is copied before prefill, or computed again.

It knows times and bytes; it does not know what holds them.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.ids import ClusterName, LinkName, NodeName
from prfaas.core.routing.uplink import Uplink

SECOND_NS = 10**9
UTILISED_NS = SECOND_NS
"""A link whose backlog takes longer than this is near saturation: bandwidth is scarce."""

COPY, SLOWER, BUSY, UNKNOWN, CANNOT, NO_LINK = (
    "copy",
    "copy_slower",
    "link_busy",
    "copy_unknown",
    "cannot_copy",
    "no_link",
)
"""What becomes of a longer prefix elsewhere: it is copied; computing is as fast; the link is near saturation; a rate, a
time or a size is not known; the nodes of one of the two do not copy; there is no link that way."""

NOBODY, NOWHERE = NodeName(""), LinkName("")


@dataclass(frozen=True, slots=True)
class Copy:
    """`node` of `cluster` holds the first `tokens` tokens of a prompt, more than the place that prefills it; `reason`:
    what becomes of that. Copied, it is `kv_bytes` over `link`, and prefill is done after `whole_ns`, the copy included;
    after `patience_ns` computing would have been as fast."""

    reason: str
    cluster: ClusterName
    tokens: int
    node: NodeName = NOBODY
    link: LinkName = NOWHERE
    kv_bytes: int = 0
    whole_ns: int = 0
    patience_ns: int = 0

    @property
    def made(self) -> bool:
        """Whether it is copied."""
        return self.reason == COPY


def scarce(link: Uplink) -> bool:
    """Whether `link` is near saturation."""
    return link.present_ns(link.unsent_bytes) > UTILISED_NS


def copy_ns(now_ns: int, link: Uplink, kv_bytes: int) -> int:
    """How long `kv_bytes` more take to cross `link`, after what is on it."""
    return link.drain_ns(now_ns, link.unsent_bytes + kv_bytes) + link.rtt_ns


def with_copy_ns(now_ns: int, link: Uplink, kv_bytes: int, own_ns: int, shorter_ns: int) -> int | None:
    """How long copying and then computing the rest, `shorter_ns`, takes; None where computing all that is missing,
    `own_ns`, is as fast."""
    whole = copy_ns(now_ns, link, kv_bytes) + shorter_ns
    return whole if whole < own_ns else None
