"""Our control endpoints beside vLLM's own door: the node protocol that heads speak, without the legs.

    GET    /prfaas/v1/node
    POST   /prfaas/v1/credit, DELETE /prfaas/v1/credit/{transfer}, POST /prfaas/v1/pace
    GET    /prfaas/v1/sent/{transfer}     waits until that transfer is over: {cause, detail, bytes_moved, moving_ns}.
                                          `?wait_ms=` bounds the wait for its offer; then 404
    GET    /health, /metrics

It knows what the mover can tell; it does not know transfers' lives. All but /health and /metrics demand the secret.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from prfaas.core.errors import RequestError
from prfaas.engine.node.promises import Promises
from prfaas.engine.vllm.outgoing import Outgoing
from prfaas.runtime.http import json_reply, make_app
from prfaas.runtime.metrics import CONTENT_TYPE, Metrics
from prfaas.wire.control import NodeInfo

_OFFER_WAIT_MS = 5_000
_MAX_WAIT_MS = 600_000


class Doors:
    """Of one node."""

    def __init__(self, info: Callable[[], NodeInfo], promises: Promises, outgoing: Outgoing, metrics: Metrics) -> None:
        self._info, self._promises, self._outgoing, self._metrics = info, promises, outgoing, metrics

    def app(self, secret: str, max_body_bytes: int) -> web.Application:
        """Not served yet."""
        app = make_app(max_body_bytes=max_body_bytes, keys=(secret,))
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics_text)
        app.router.add_get("/prfaas/v1/node", self._node)
        app.router.add_get("/prfaas/v1/sent/{transfer}", self._sent)
        app.router.add_routes(self._promises.routes())
        return app

    async def _health(self, request: web.Request) -> web.StreamResponse:
        return json_reply({"status": "ok"})

    async def _metrics_text(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _node(self, request: web.Request) -> web.StreamResponse:
        return json_reply(self._info())

    async def _sent(self, request: web.Request) -> web.StreamResponse:
        transfer, asked = request.match_info["transfer"], request.query.get("wait_ms", str(_OFFER_WAIT_MS))
        if not asked.isdecimal() or int(asked) > _MAX_WAIT_MS:
            said = f"wait_ms: got {asked[:20]!r}; expected milliseconds, at most {_MAX_WAIT_MS}"
            raise RequestError(said, param="wait_ms", code="invalid_value")
        outcome = await self._outgoing.outcome(transfer, int(asked) / 1000)
        if outcome is None:
            raise RequestError(f"transfer {transfer[:200]} was not offered here", status=404, code="unknown_transfer")
        return json_reply(outcome)
