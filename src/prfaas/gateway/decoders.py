"""The decode nodes of a gateway's cluster: what the roster says of them, as the router's events.

It knows sights and the router's view. It does not know requests or calls: the router says what becomes of them.
"""

from __future__ import annotations

from collections.abc import Callable

from prfaas.cluster.roster import Sight
from prfaas.core.ids import NodeName
from prfaas.core.membership.effects import Lost
from prfaas.core.routing.router import RouterEvent
from prfaas.core.routing.view import DecodeLost, DecodeSeen, View


class Decoders:
    """See `cluster.roster.Workers`. `post` hands events to the router, whose view it reads."""

    def __init__(self, view: View, post: Callable[[RouterEvent], None]) -> None:
        self._view = view
        self._post = post

    @property
    def ready(self) -> int:
        """Decode nodes that take work."""
        return sum(decoder.ready for decoder in self._view.decoders.values())

    @property
    def max_model_len(self) -> int:
        """Tokens that the roomiest of them takes; 0 when none is ready."""
        return max((decoder.max_tokens for decoder in self._view.decoders.values() if decoder.ready), default=0)

    def layout(self, node: NodeName) -> str:
        """The KV layout of a node; "" when it is not known any more."""
        decoder = self._view.decoders.get(node)
        return decoder.layout if decoder is not None else ""

    def ranks(self, node: NodeName) -> int:
        """How many ranks a node has; 0 when that is not known."""
        decoder = self._view.decoders.get(node)
        return decoder.ranks if decoder is not None else 0

    def member(self, sight: Sight) -> None:
        """It takes work as it says, or none."""
        info = sight.info
        if info is None:
            self._post(DecodeSeen(sight.node, False, 0, 0, self.layout(sight.node), self.ranks(sight.node)))
        else:
            ranks = len(info.data)
            self._post(DecodeSeen(sight.node, True, info.running, info.max_model_len, info.layout, ranks))

    def lost(self, lost: Lost) -> None:
        """Calls to that incarnation are given up, and their requests placed again."""
        self._post(DecodeLost(lost.node, lost.until_ns, f"decode node {lost.node}: {lost.cause}"))

    def gone(self, node: NodeName, cause: str) -> None:
        """It is not in the view any more; nothing may wait for it."""
        self._post(DecodeLost(node, None, f"decode node {node}: {cause}"))

    def running(self, node: NodeName) -> int:
        """Requests that are placed on it."""
        return self._view.assigned.get(node, 0)
