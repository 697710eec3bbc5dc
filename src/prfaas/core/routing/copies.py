"""From where each cluster of a gateway could copy a prefix, and whether that pays now.

It knows the links that the topology has, in their directions, and what is on them; it does not know policies or
requests' lives. Where bandwidth is scarce, or anything is not known, each cluster's cache counts for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prfaas.core.ids import LinkName, TransferId
from prfaas.core.routing.cached import Cached
from prfaas.core.routing.copying import BUSY, CANNOT, COPY, NO_LINK, NOBODY, SLOWER, UNKNOWN, Copy, scarce, with_copy_ns
from prfaas.core.routing.crossing import Crossing
from prfaas.core.routing.uplink import Uplink
from prfaas.core.routing.view import Source

Bytes = Callable[[int], int | None]
"""KV bytes of so many tokens; None while that is not known."""
Times = Callable[[int, int, int], int | None]
"""How long cluster `at` takes for what is left of `tokens` tokens after `cached`; None while that is not known."""


class Copies:
    """Of `sources`, our own cluster first; `crossings[at]`: what is on the link from there to ours. `on`: whether
    prefixes are copied at all. `able[at]`: whether the nodes of that cluster lend and fetch."""

    def __init__(
        self, sources: Sequence[Source], crossings: Sequence[Crossing | None], size: Bytes, takes: Times, on: bool
    ) -> None:
        self._sources, self._size, self._takes, self.on = sources, size, takes, on
        self.able = [False] * len(sources)
        self._lines: dict[tuple[int, int], tuple[LinkName, Crossing]] = {}
        for at, (source, crossing) in enumerate(zip(sources, crossings, strict=True)):
            if crossing is not None:
                self._lines[at, 0] = (source.link, crossing)
            if source.back is not None:
                back = source.back
                self._lines[0, at] = (back.link, Crossing(Uplink(back.bandwidth_bps, back.rtt_ns)))
        self._begun: dict[TransferId, Crossing] = {}

    def bar(self, source: int, to: int) -> str:
        """What stands against any copy from `source` to `to` now; "" when nothing does."""
        line = self._lines.get((source, to))
        if line is None:
            return NO_LINK
        if not self.able[source] or not self.able[to]:
            return CANNOT
        if line[1].uplink.now_bps is None:
            return UNKNOWN
        return BUSY if scarce(line[1].uplink) else ""

    def to(self, now_ns: int, at: int, tokens: int, cached: Cached) -> Copy | None:
        """The longest prefix of a prompt of `tokens` tokens that is elsewhere, if it is longer than what cluster `at`
        has, one that may be copied if there is such a one, and what becomes of it."""
        if not self.on or not cached.clusters:
            return None
        own = cached.at(self._sources[at].cluster, tokens)
        held = [(cached.at(source.cluster, tokens), one) for one, source in enumerate(self._sources) if one != at]
        longer = [(-length, self.bar(one, at), one) for length, one in held if length > own]
        if not longer:
            return None
        length, bar, source = min([one for one in longer if not one[1]] or longer)
        cluster = self._sources[source].cluster
        found = Copy(bar or CANNOT, cluster, -length, cached.lenders.get(cluster, NOBODY))
        if bar or not found.node:
            return found
        link, crossing = self._lines[source, at]
        kv_bytes = self._size(found.tokens - own)
        all_ns, rest_ns = self._takes(at, tokens, own), self._takes(at, tokens, found.tokens)
        if kv_bytes is None or all_ns is None or rest_ns is None:
            return replace(found, reason=UNKNOWN)
        whole_ns = with_copy_ns(now_ns, crossing.uplink, kv_bytes, all_ns, rest_ns)
        if whole_ns is None:
            return replace(found, reason=SLOWER)
        return replace(
            found, reason=COPY, link=link, kv_bytes=kv_bytes, whole_ns=whole_ns, patience_ns=all_ns - rest_ns
        )

    def home_from(self, tokens: int) -> tuple[int, ...]:
        """Clusters from which a prefix of a prompt of `tokens` tokens may be copied to ours now."""
        if not self.on or self._size(tokens) is None:
            return ()
        return tuple(at for at in range(1, len(self._sources)) if not self.bar(at, 0))

    def begin(self, now_ns: int, transfer: TransferId, copy: Copy) -> None:
        """`copy` is asked for, on behalf of the prefill `transfer`."""
        for link, crossing in self._lines.values():
            if link == copy.link:
                self._begun[transfer] = crossing
                crossing.begin(now_ns, _name(transfer), now_ns, copy.kv_bytes)

    def end(self, now_ns: int, transfer: TransferId) -> None:
        """That prefill is over, and so is any copy for it. Harmless when there was none."""
        crossing = self._begun.pop(transfer, None)
        if crossing is not None:
            crossing.end(now_ns, _name(transfer))

    def book(self, now_ns: int) -> None:
        """Count what has probably crossed until now."""
        for _, crossing in self._lines.values():
            crossing.book(now_ns)

    def on_their_way(self, crossing: Crossing) -> int:
        """Copies on that link."""
        return sum(one is crossing for one in self._begun.values())


def _name(transfer: TransferId) -> TransferId:
    return TransferId(f"copy for {transfer}")
