"""Every request to the doors that serve is booked once: here unless it comes to the router, which books it at its end.

It knows paths, statuses and the metric; it does not know why a request was refused.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web

from prfaas.runtime.http import Handler
from prfaas.runtime.metrics import Metrics

UNPLACED = "none"
"""The route of a request that was never placed."""

_PLACED: web.RequestKey[bool] = web.RequestKey("placed", bool)


class Booking:
    """Books requests to `paths`, whatever their method: `refused` with an error, `gone` when the client left first."""

    def __init__(self, paths: frozenset[str], metrics: Metrics) -> None:
        self._paths, self._metrics = paths, metrics

    def placed(self, http: web.Request) -> None:
        """The router has it from now on."""
        http[_PLACED] = True

    @property
    def book(self) -> Any:
        """A middleware; it stands around all others, so that what they refuse is booked too."""

        @web.middleware
        async def book(http: web.Request, handler: Handler) -> web.StreamResponse:
            if http.path not in self._paths:
                return await handler(http)
            try:
                reply = await handler(http)
            except asyncio.CancelledError:
                self._unplaced(http, "gone")
                raise
            self._unplaced(http, "refused" if reply.status >= 400 else "gone")
            return reply

        return book

    def _unplaced(self, http: web.Request, outcome: str) -> None:
        if _PLACED not in http:
            self._metrics.request_ended(UNPLACED, outcome)
