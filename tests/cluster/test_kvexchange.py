"""Heads that tell each other what their clusters hold: page by page in any order of events, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prfaas.cluster.kvexchange import KVExchange
from prfaas.core.errors import ProtocolError
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import Apart, Change, Cleared, Closed, Marked, Opened, Removed, Stored, apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.mirror import Do, Got, Mirror, Page, Query, Stale
from prfaas.core.index.places import Known, Place
from prfaas.runtime.client import Refused, fetch, make_session
from prfaas.runtime.http import Listening, make_app, serve
from prfaas.wire.kvexchange import PATH, decode, encode

FAR, PD = ClusterName("far"), ClusterName("pd")
PLACES = [Place(FAR, NodeName("a")), Place(FAR, NodeName("a"), 1), Place(FAR, NodeName("b"))]
CHAINS = [[chain * 100 + at for at in range(1, 41)] for chain in range(3)]


@pytest.mark.parametrize(
    "change",
    [
        Opened(PLACES[1], Epoch(7), {1: 1, -1: 0}, Known.PARTLY),
        Closed(PLACES[0]),
        Marked(PLACES[0], Known.WHOLLY),
        Apart(PLACES[0], 3, 65),
        Stored(PLACES[0], (2**64 - 1, 0), 2**63, "GPU", 4),
        Removed(PLACES[0], (1,), None, -2),
        Cleared(PLACES[2]),
    ],
)
def test_what_crosses_is_read_back(change: Change) -> None:
    page = Page(3, 5, 9, (change,), True, False, "a:1:77")
    assert decode(encode(page), FAR) == page


def test_what_is_no_page() -> None:
    for raw in (b"", b"\xc1", b"\x80", encode(Page(1, 0, 0, ()))[:-1]):
        with pytest.raises(ProtocolError, match="kv_exchange"):
            decode(raw, FAR)


class Told(RuleBasedStateMachine):
    """A head that changes, one that mirrors it, and pages between them, at any pace. When the mirror is current, it
    answers as the head did; else it answers nothing."""

    @initialize(log=st.integers(1, 120), page=st.integers(1, 60))
    def start(self, log: int, page: int) -> None:
        self.sizes, self.epoch, self.opened = (log, page), 0, 0
        self.mirror, self.mirrored = Mirror(FAR, 1000), PrefixIndex()
        self.begin()

    def begin(self) -> None:
        self.epoch += 1
        self.index = PrefixIndex(run_blocks=3)
        log, page = self.sizes
        self.head = KVExchange(FAR, self.index, epoch=self.epoch, log_hashes=log, page_hashes=page)

    @rule()
    def restart(self) -> None:
        self.begin()

    @rule(place=st.sampled_from(PLACES), known=st.sampled_from(Known), groups=st.sampled_from([{}, {1: 1}]))
    def open(self, place: Place, known: Known, groups: dict[int, int]) -> None:
        self.opened += 1
        self.head.change(Opened(place, Epoch(self.opened), groups, known))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        places = sorted(self.index.places())
        if not places:
            return
        place = data.draw(st.sampled_from(places))
        chain = data.draw(st.sampled_from(CHAINS))
        low = data.draw(st.integers(0, 39))
        some = tuple(chain[low : low + data.draw(st.integers(1, 40))])
        group = data.draw(st.sampled_from([None, None, 1]))
        parent = chain[low - 1] if low else None
        changes = [
            Stored(place, some, parent, "", group),
            Stored(place, tuple(chain), None),
            Removed(place, some, None, group),
            Marked(place, data.draw(st.sampled_from(Known))),
            Cleared(place),
            Apart(place, 1, 1),
            Closed(place),
        ]
        self.head.change(changes[data.draw(st.sampled_from([0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 5, 6]))])

    @rule(pages=st.integers(1, 8))
    def pages(self, pages: int) -> None:
        for _ in range(pages):
            page = decode(encode(self.head.page(self.mirror.query)), FAR)
            self.post(Got(page))

    @rule()
    def silence(self) -> None:
        self.post(Stale())

    def post(self, event: Any) -> None:
        for effect in self.mirror.handle(0, event):
            if isinstance(effect, Do):
                apply(self.mirrored, effect.change)
        self.mirror.validate()
        self.mirrored.validate()

    @invariant()
    def it_answers_the_same_or_nothing(self) -> None:
        if not hasattr(self, "mirror"):
            return
        if not self.mirror.current:
            assert all(self.mirrored.usable(chain).held == () for chain in CHAINS)
        elif self.mirror.query == Query(self.epoch, self.head._log.last):
            assert {place: known for place, (_, known) in self.mirrored.places().items()} == {
                place: known for place, (_, known) in self.index.places().items()
            }
            for chain in CHAINS:
                assert set(self.mirrored.usable(chain).held) == set(self.index.usable(chain).held)

    def teardown(self) -> None:
        if hasattr(self, "mirror"):
            for _ in range(1000):
                self.pages(1)
                if self.mirror.current:
                    break
            assert self.mirror.current
            self.it_answers_the_same_or_nothing()


TestTold = Told.TestCase
TestTold.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


SECRET = "s3cret"


class Far:
    """A head over HTTP."""

    def __init__(self, exchange: KVExchange, listening: Listening) -> None:
        self.exchange, self.listening = exchange, listening


async def far_head(port: int = 0, **more: Any) -> Far:
    exchange = KVExchange(FAR, PrefixIndex(), **more)
    app = make_app(max_body_bytes=1000, keys=(SECRET,))
    exchange.add_to(app.router)
    return Far(exchange, await serve(app, "127.0.0.1", port))


class Watched(PrefixIndex):
    """An index that says when it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = asyncio.Event()

    def _know(self) -> None:
        super()._know()
        if hasattr(self, "changed"):
            self.changed.set()

    def stored(self, *args: Any, **more: Any) -> None:
        super().stored(*args, **more)
        self.changed.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not holds():
                self.changed.clear()
                await self.changed.wait()


@contextlib.asynccontextmanager
async def gateway(far: Far, secret: str = SECRET, stale_s: float = 30.0) -> AsyncIterator[Watched]:
    index = Watched()
    exchange = KVExchange(PD, index)
    async with make_session(secret) as session:
        following = asyncio.create_task(
            exchange.follow(FAR, far.listening.url, session, wait_ms=200, stale_s=stale_s, pause_s=0.01)
        )
        try:
            yield index
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_a_gateway_knows_without_asking() -> None:
    far = await far_head(page_hashes=16)
    try:
        for number, place in enumerate(PLACES):
            far.exchange.change(Opened(place, Epoch(1), {}, Known.WHOLLY))
            far.exchange.change(Stored(place, tuple(CHAINS[number]), None))
        async with gateway(far) as index:
            await index.until(lambda: index.usable(CHAINS[2]).in_cluster(FAR) == 40 * 64)
            answer = index.usable(CHAINS[1])
            assert answer.nodes(FAR) == {"a": 40 * 64}
            assert answer.tells_all_of(FAR)
            far.exchange.change(Removed(PLACES[2], tuple(CHAINS[2][10:])))
            far.exchange.change(Stored(PLACES[0], tuple(CHAINS[2][:30]), None))
            await index.until(lambda: index.usable(CHAINS[2]).in_cluster(FAR) == 30 * 64)
            found = {held.place: held.tokens // 64 for held in index.usable(CHAINS[2]).held}
            assert found == {PLACES[0]: 30, PLACES[2]: 10}
            far.exchange.change(Marked(PLACES[0], Known.UNKNOWN))
            await index.until(lambda: index.usable(CHAINS[2]).in_cluster(FAR) == 10 * 64)
    finally:
        await far.listening.close()


@pytest.mark.slow
async def test_a_head_that_restarts_is_read_anew_and_one_that_is_silent_is_unknown() -> None:
    far = await far_head(epoch=1)
    far.exchange.change(Opened(PLACES[0], Epoch(5), {}, Known.WHOLLY))
    far.exchange.change(Stored(PLACES[0], tuple(CHAINS[0]), None))
    async with gateway(far, stale_s=0.3) as index:
        await index.until(lambda: index.usable(CHAINS[0]).in_cluster(FAR) == 40 * 64)
        await far.listening.close()
        await index.until(lambda: index.usable(CHAINS[0]).unknown == (PLACES[0],))
        assert index.usable(CHAINS[0]).held == ()
        again = await far_head(far.listening.port, epoch=2)
        again.exchange.change(Opened(PLACES[2], Epoch(1), {}, Known.WHOLLY))
        again.exchange.change(Stored(PLACES[2], tuple(CHAINS[0][:7]), None))
        try:
            await index.until(lambda: index.usable(CHAINS[0]).in_cluster(FAR) == 7 * 64)
            assert list(index.places()) == [PLACES[2]]
        finally:
            await again.listening.close()


@pytest.mark.slow
@pytest.mark.parametrize("log_hashes", [1 << 10, 1])
async def test_a_line_that_is_down_for_a_while(log_hashes: int) -> None:
    """The head lives on and nobody hears it: unknown, then all that happened meanwhile, from its log or anew."""
    far = await far_head(epoch=1, log_hashes=log_hashes)
    far.exchange.change(Opened(PLACES[0], Epoch(5), {}, Known.WHOLLY))
    far.exchange.change(Stored(PLACES[0], tuple(CHAINS[0]), None))
    async with gateway(far, stale_s=0.3) as index:
        await index.until(lambda: index.usable(CHAINS[0]).in_cluster(FAR) == 40 * 64)
        await far.listening.close()
        await index.until(lambda: index.usable(CHAINS[0]).unknown == (PLACES[0],))
        far.exchange.change(Removed(PLACES[0], tuple(CHAINS[0][9:])))
        far.exchange.change(Stored(PLACES[0], tuple(CHAINS[2]), None))
        app = make_app(max_body_bytes=1000, keys=(SECRET,))
        far.exchange.add_to(app.router)
        again = await serve(app, "127.0.0.1", far.listening.port)
        try:
            await index.until(lambda: index.usable(CHAINS[2]).in_cluster(FAR) == 40 * 64)
            assert index.usable(CHAINS[0]).in_cluster(FAR) == 9 * 64
            assert index.usable(CHAINS[0]).tells_all_of(FAR)
        finally:
            await again.close()


async def test_who_has_no_secret_is_told_nothing() -> None:
    far = await far_head()
    far.exchange.change(Opened(PLACES[0], Epoch(1), {}, Known.WHOLLY))
    try:
        async with make_session("wrong") as session:
            with pytest.raises(Refused) as refused:
                await fetch(session, f"{far.listening.url}{PATH}")
            assert refused.value.status == 401
        async with make_session(SECRET) as session:
            for query in ("epoch=x", "since=-1", "wait_ms=1e3", f"since={'9' * 30}"):
                with pytest.raises(Refused) as refused:
                    await fetch(session, f"{far.listening.url}{PATH}?{query}")
                assert refused.value.status == 400
            page = decode(await fetch(session, f"{far.listening.url}{PATH}"), FAR)
            for after in ("x", ":1:2", "a:b:1", "a:1:b"):
                with pytest.raises(Refused) as refused:
                    await fetch(session, f"{far.listening.url}{PATH}?epoch={page.epoch}&after={after}")
                assert refused.value.status == 400
            assert page.snapshot
    finally:
        await far.listening.close()
