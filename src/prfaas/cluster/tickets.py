"""Tickets that a head gives for what its nodes send.

It knows the secret and how long a ticket is good; it does not know what is sent.
"""

from __future__ import annotations

import time

from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.wire.control import NodeInfo
from prfaas.wire.ticket import mint

GRACE_S = 30


class Tickets:
    """Good for `grace_s` longer than what they are for may take."""

    def __init__(self, secret: bytes, grace_s: int = GRACE_S) -> None:
        self._secret, self._grace_s = secret, grace_s

    def of(self, info: NodeInfo, transfer: TransferId, receiver: NodeName, link: LinkName, left_s: float) -> str:
        """Leave for `receiver` to fetch `transfer`, which takes `left_s` at most, from the node that said `info`."""
        return mint(
            self._secret,
            transfer=transfer,
            epoch=Epoch(info.epoch),
            node=NodeName(info.node),
            receiver=receiver,
            link=link,
            lifetime_s=int(left_s) + self._grace_s,
            now=time.time(),
        )
