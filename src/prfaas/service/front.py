"""The prefill service over HTTP: gateways ask for prefills and read how they go, line by line; nodes join.

It knows HTTP and the control messages; the cluster's head does the work. A gateway that hangs up withdraws its prefill.
"""

from __future__ import annotations

import contextlib

import structlog
from aiohttp import web

from prfaas.cluster.head import ClusterHead
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.offers import misfit
from prfaas.cluster.registrar import Registrar
from prfaas.core.errors import RequestError
from prfaas.core.ids import TransferId
from prfaas.runtime.client import line_bytes
from prfaas.runtime.http import json_reply, make_app, read_json
from prfaas.runtime.metrics import CONTENT_TYPE, Metrics
from prfaas.wire.control import PrefillRequest, PrefixOffer, PrefixRequest

log = structlog.get_logger(__name__)


class ServiceFront:
    """The HTTP application of a prefill service. `secret`: what callers must show. `exchange`: tells what is
    cached here, if that is known."""

    def __init__(
        self,
        head: ClusterHead,
        metrics: Metrics,
        max_body_bytes: int,
        secret: str,
        exchange: KVExchange | None = None,
    ) -> None:
        self._exchange = exchange
        self._head = head
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._secret = secret

    def app(self) -> web.Application:
        """The routes; all but health and metrics demand the secret."""
        app = make_app(max_body_bytes=self._max_body_bytes, keys=(self._secret,))
        app.router.add_get("/prfaas/v1/cluster", self._cluster)
        app.router.add_post("/prfaas/v1/prefill", self._prefill)
        app.router.add_post("/prfaas/v1/prefill/{transfer}/prefix", self._supply)
        app.router.add_post("/prfaas/v1/prefix", self._lend)
        Registrar(self._head.roster).add_to(app.router)
        if self._exchange is not None:
            self._exchange.add_to(app.router)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._text)
        return app

    async def _cluster(self, http: web.Request) -> web.Response:
        return json_reply(self._head.info())

    async def _health(self, http: web.Request) -> web.Response:
        ready = self._head.info().ready
        return json_reply({"status": "ok" if ready else "no prefill node is ready"}, 200 if ready else 503)

    async def _text(self, http: web.Request) -> web.Response:
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _prefill(self, http: web.Request) -> web.StreamResponse:
        request = await read_json(http, PrefillRequest)
        out = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await out.prepare(http)
        outcome = "gone"
        try:
            async with contextlib.aclosing(self._head.prefill(request)) as updates:
                async for update in updates:
                    await out.write(line_bytes(update))
                    outcome = {"done": "ok", "failed": "failed"}.get(update.state, outcome)
            await out.write_eof()
        finally:
            self._metrics.request_ended("prefill", outcome)
            log.info("prefill ended", transfer=request.transfer_id, tokens=request.prompt_tokens, outcome=outcome)
        return out

    async def _supply(self, http: web.Request) -> web.StreamResponse:
        offer = await read_json(http, PrefixOffer)
        transfer = TransferId(http.match_info["transfer"])
        wrong = misfit(transfer, offer.prefix) if offer.prefix is not None else ""
        if wrong:
            raise RequestError(f"prefix: {wrong}", code="invalid_value", param="prefix")
        if not self._head.supply(transfer, offer.prefix):
            raise RequestError(f"no prefill {transfer} waits for a prefix, or any more", status=404, code="late")
        return json_reply({})

    async def _lend(self, http: web.Request) -> web.StreamResponse:
        request = await read_json(http, PrefixRequest)
        out = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await out.prepare(http)
        async with contextlib.aclosing(self._head.lend(request)) as updates:
            async for update in updates:
                await out.write(line_bytes(update))
        await out.write_eof()
        return out
