"""The index of a head, and its exchange with others: what changed here is told, what changed there is applied.

It knows HTTP, pages and how long to wait; what a page means is `core.index.mirror`'s. Every head tells of its own
cluster's places only, from a bounded log; whoever has fallen behind it reads a snapshot, page by page. So a gateway
answers from its own memory how much of a prompt each cluster can use.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import replace

import aiohttp
import structlog
from aiohttp import web

from prfaas.core.errors import RemoteError, RequestError
from prfaas.core.ids import ClusterName, NodeName
from prfaas.core.index.changes import Change, ChangeLog, Opened, Removed, Stored, apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.mirror import Do, Got, Mirror, MirrorEvent, Page, Query
from prfaas.core.index.places import Place
from prfaas.runtime.client import fetch
from prfaas.runtime.driver import Driver
from prfaas.wire.kvexchange import MAX_PAGE_BYTES, PAGE_HASHES, PATH, decode, encode

log = structlog.get_logger(__name__)
LOG_HASHES = 1 << 19
MAX_WAIT_MS = 30_000
WAIT_MS = 10_000
STALE_S = 30.0
"""Longer than an answer may take: a head that is silent for so long is not there."""
PAUSE_S = 0.5
MOST_PAUSE_S = 8.0
MAX_DIGITS = 20


class KVExchange:
    """The index of one head: its own cluster's places by `change`, others' by `follow`.

    `epoch`: this incarnation of the head; by default the clock at its start.
    """

    def __init__(
        self,
        cluster: ClusterName,
        index: PrefixIndex,
        *,
        epoch: int | None = None,
        log_hashes: int = LOG_HASHES,
        page_hashes: int = PAGE_HASHES,
    ) -> None:
        self.cluster, self.index = cluster, index
        self._epoch = time.time_ns() if epoch is None else epoch
        self._log = ChangeLog(log_hashes)
        self._page_hashes = page_hashes
        self._changed = asyncio.Event()

    def change(self, change: Change) -> None:
        """This happened in the own cluster: `KVFollower`'s listener."""
        apply(self.index, change)
        for piece in _split(change, self._page_hashes):
            self._log.append(piece)
        self._changed.set()

    def add_to(self, router: web.UrlDispatcher) -> None:
        """Add the route. The application demands the programs' secret (`runtime.http.make_app`)."""
        router.add_get(PATH, self._serve)

    async def follow(
        self,
        cluster: ClusterName,
        url: str,
        session: aiohttp.ClientSession,
        *,
        wait_ms: int = WAIT_MS,
        stale_s: float = STALE_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """Mirrors the places of `cluster`, whose head is at `url`, until cancelled. `session` shows the secret."""
        mirror = Mirror(cluster, int(stale_s * 1e9))
        driver: Driver[MirrorEvent, Do] = Driver(mirror, lambda now_ns, effect: apply(self.index, effect.change))
        failures = 0
        try:
            while True:
                try:
                    raw = await fetch(
                        session,
                        f"{url}{PATH}?{_asked(mirror.query, wait_ms)}",
                        timeout_s=wait_ms / 1e3 + stale_s / 2,
                        max_bytes=MAX_PAGE_BYTES,
                    )
                    page = decode(raw, cluster)
                except RemoteError as error:
                    failures += 1
                    if failures == 1:
                        log.warning("the head's prefixes are not to be had", cluster=cluster, detail=str(error))
                    await asyncio.sleep(min(pause_s * 2 ** min(failures - 1, 10), MOST_PAUSE_S))
                    continue
                failures = 0
                driver.post(Got(page))
        finally:
            driver.close()

    def page(self, query: Query) -> Page:
        """The answer to `query`, as things are. Raises RequestError."""
        ours = query.epoch == self._epoch
        if query.after and ours:
            return self._snapshot(query.since, _cursor(query.after))
        found = self._log.since(query.since, self._page_hashes) if ours else None
        if found is None:
            return self._snapshot(self._log.last, None)
        return Page(self._epoch, query.since + len(found), self._log.last, tuple(found))

    async def _serve(self, http: web.Request) -> web.Response:
        query = Query(_number(http.query, "epoch"), _number(http.query, "since"), http.query.get("after", ""))
        wait_ms = min(_number(http.query, "wait_ms"), MAX_WAIT_MS)
        if query == Query(self._epoch, self._log.last) and wait_ms:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_ms / 1e3):
                    while query.since == self._log.last:
                        self._changed.clear()
                        await self._changed.wait()
        return web.Response(body=encode(self.page(query)), content_type="application/msgpack")

    def _snapshot(self, since: int, cursor: tuple[NodeName, int, int] | None) -> Page:
        """What is held, from `cursor` on. `since`: what the changes after it are to be read from."""
        own = {place: said for place, said in self.index.places().items() if place.cluster == self.cluster}
        changes: list[Change] = []
        if cursor is None:
            changes = [Opened(place, own[place][0], self.index.groups(place), own[place][1]) for place in sorted(own)]
        room, after = self._page_hashes, ""
        for place in sorted(own):
            above = -1
            if cursor is not None:
                if place < Place(self.cluster, cursor[0], cursor[1]):
                    continue
                above = cursor[2] if place == Place(self.cluster, cursor[0], cursor[1]) else -1
            if room <= 0:
                after = f"{place.node}:{place.rank}:"
                break
            pieces, following = self.index.held(place, above, room)
            changes += (Stored(place, *piece) for piece in pieces)
            room -= sum(len(piece.hashes) for piece in pieces)
            if following is not None:
                after = f"{place.node}:{place.rank}:{following}"
                break
        return Page(self._epoch, since, self._log.last, tuple(changes), True, cursor is None, after)


def _split(change: Change, most: int) -> list[Change]:
    """What is long in pieces, so that every page is bounded."""
    if not isinstance(change, Stored | Removed) or len(change.hashes) <= most:
        return [change]
    pieces: list[Change] = []
    for start in range(0, len(change.hashes), most):
        piece = replace(change, hashes=change.hashes[start : start + most])
        if start and isinstance(piece, Stored):
            piece = replace(piece, parent=change.hashes[start - 1])
        pieces.append(piece)
    return pieces


def _asked(query: Query, wait_ms: int) -> str:
    if query.after:
        return f"epoch={query.epoch}&since={query.since}&after={query.after}"
    return f"epoch={query.epoch}&since={query.since}&wait_ms={wait_ms}"


def _number(query: Mapping[str, str], name: str) -> int:
    said = query.get(name, "0")
    if not (said.isascii() and said.isdigit() and len(said) <= MAX_DIGITS):
        raise RequestError(f"{name} is {said[:40]!r}; expected a number", param=name, code="invalid_value")
    return int(said)


def _cursor(after: str) -> tuple[NodeName, int, int]:
    node, _, rest = after.partition(":")
    rank, _, above = rest.partition(":")
    if not node or not all(
        part.isascii() and part.isdigit() and len(part) <= MAX_DIGITS for part in (rank, above or "0")
    ):
        raise RequestError(f"after is {after[:80]!r}; expected what a page said", param="after", code="invalid_value")
    return NodeName(node), int(rank), int(above) if above else -1
