"""Joining and leaving over HTTP: the members' endpoints of `wire.members`, for the front doors of both heads.

It knows HTTP and what may be said; who may join, the roster says. Both heads' doors demand the programs' secret for
these paths (`runtime.http.make_app`, `inside`).
"""

from __future__ import annotations

from urllib.parse import urlsplit

from aiohttp import web

from prfaas.cluster.roster import Roster
from prfaas.core.errors import RequestError
from prfaas.core.ids import Epoch, NodeName
from prfaas.runtime.http import json_reply, read_json
from prfaas.wire.members import PATH, JoinRequest, RenewRequest

MAX_EPOCH_DIGITS = 19


class Registrar:
    """The endpoints of one roster."""

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the routes."""
        router.add_post(PATH, self._join)
        router.add_get(PATH, self._members)
        router.add_post(PATH + "/{node}/renew", self._renew)
        router.add_delete(PATH + "/{node}", self._leave)

    async def _join(self, http: web.Request) -> web.Response:
        asked = await read_json(http, JoinRequest)
        check_url(asked.url)
        return json_reply(self._roster.join(asked))

    async def _renew(self, http: web.Request) -> web.Response:
        asked = await read_json(http, RenewRequest)
        return json_reply(self._roster.renew(_node(http), Epoch(asked.epoch)))

    async def _leave(self, http: web.Request) -> web.Response:
        said = http.query.get("epoch", "")
        if not (said.isascii() and said.isdigit() and len(said) <= MAX_EPOCH_DIGITS):
            raise RequestError("expected ?epoch= with the incarnation that leaves", param="epoch", code="invalid_value")
        return json_reply(self._roster.leave(_node(http), Epoch(int(said))))

    async def _members(self, http: web.Request) -> web.Response:
        return json_reply(self._roster.members())


def check_url(url: str) -> None:
    """Raises RequestError, 400, unless `url` is `http(s)://host:port` and nothing else: a head will call it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    plain = url.isascii() and url.isprintable() and not any(sign in url for sign in " @?#\\")
    good = plain and parts.scheme in ("http", "https") and parts.hostname and port and parts.path == ""
    if not good:
        raise RequestError(f"url is {url[:80]!r}; expected http://HOST:PORT", param="url", code="invalid_value")


def _node(http: web.Request) -> NodeName:
    return NodeName(http.match_info["node"][:64])
