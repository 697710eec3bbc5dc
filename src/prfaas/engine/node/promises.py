"""Endpoints where a head takes promises of a node: room for KV that will come, and the rate at which KV may leave.

It knows credit and the pace of links, whatever engine is behind; it does not know legs.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import RequestError
from prfaas.core.ids import LinkName, NodeName, TransferId
from prfaas.engine.node.credit import Credits
from prfaas.runtime.http import json_reply, read_json
from prfaas.wire.control import CreditReply, CreditRequest, PaceLease

Pace = Callable[[LinkName, int, int, int], None]
"""`Transport.pace`: link, bits a second, lease in ns, fence."""


class Promises:
    """Of one node. `layout` is asked for when credit is: an engine may know it late."""

    def __init__(self, credits: Credits, pace: Pace, layout: Callable[[], KVLayout], node: NodeName) -> None:
        self._credits, self._paced, self._layout, self._node = credits, pace, layout, node

    def routes(self) -> tuple[web.RouteDef, ...]:
        """What it answers."""
        return (
            web.post("/prfaas/v1/credit", self._credit),
            web.delete("/prfaas/v1/credit/{transfer}", self._drop_credit),
            web.post("/prfaas/v1/pace", self._pace),
        )

    async def _credit(self, request: web.Request) -> web.StreamResponse:
        asked = await read_json(request, CreditRequest)
        if not asked.transfer_id or asked.prompt_tokens < 1 or asked.lease_ms < 1:
            raise RequestError(
                "transfer_id, prompt_tokens and lease_ms are needed, none of them empty", code="invalid_value"
            )
        kv_bytes = self._layout().bytes_at(asked.prompt_tokens - 1)
        await self._credits.grant(TransferId(asked.transfer_id), kv_bytes, asked.lease_ms / 1000)
        return json_reply(CreditReply(asked.transfer_id, kv_bytes, self._node))

    async def _drop_credit(self, request: web.Request) -> web.StreamResponse:
        self._credits.give_up(TransferId(request.match_info["transfer"]))
        return json_reply({})

    async def _pace(self, request: web.Request) -> web.StreamResponse:
        lease = await read_json(request, PaceLease)
        if lease.rate_bps < 0 or lease.lease_ms < 1:
            raise RequestError("rate_bps must not be negative, lease_ms must be positive", code="invalid_value")
        self._paced(LinkName(lease.link), lease.rate_bps, lease.lease_ms * 10**6, lease.fence)
        return json_reply({})
