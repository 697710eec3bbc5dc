"""One request: its tokens as they come, and every way in which it goes wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.measure.fake import BASE, Fake, busy, serving

from prfaas.core.errors import ConfigError, PeerFailure, ProtocolError
from prfaas.measure.ask import Endpoint, Heard, Served, discover, endpoint_url
from prfaas.runtime.client import Refused, make_session


@asynccontextmanager
async def endpoint(fake: Fake) -> AsyncIterator[Endpoint]:
    async with serving(fake) as url, make_session() as session:
        yield Endpoint(session, f"{url}/v1", Served("fake", None), 30.0)


@pytest.mark.parametrize("counts", [True, False])
async def test_tokens_as_they_come(counts: bool) -> None:
    moves: list[int] = []
    async with endpoint(Fake(batches=[1], counts=counts)) as one:
        heard = Heard()
        await one.hear("a b c", 5, heard, lambda: moves.append(len(heard.arrivals)))
    assert [count for _, count in heard.arrivals] == [1, 2, 3, 4, 5]
    assert [ns for ns, _ in heard.arrivals] == sorted(ns for ns, _ in heard.arrivals)
    assert heard.first_ns is not None
    assert heard.first_ns >= heard.sent_ns > 0
    assert (heard.prompt, heard.cached, heard.ended) == (BASE + 3, 0, True)
    assert moves[-1] == 5


async def test_what_is_asked() -> None:
    fake = Fake()
    async with endpoint(fake) as one:
        await one.hear("a", 1)
    (body,) = fake.asked
    assert body["ignore_eos"] is body["stream"] is body["stream_options"]["include_usage"] is True
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("fake", 1, 0)


async def test_cached_tokens_that_are_not_said() -> None:
    async with endpoint(Fake(cached=None)) as one:
        assert (await one.hear("a", 1)).cached is None


async def test_failures() -> None:
    async with endpoint(Fake(longest=10)) as one:
        with pytest.raises(Refused, match="maximum context length is 10") as caught:
            await one.hear("a " * 20, 1)
        assert caught.value.status == 400
    async with endpoint(Fake(done=False)) as one:
        with pytest.raises(PeerFailure, match=r"cut_off: .* without \[DONE\]"):
            await one.hear("a", 1)
    async with endpoint(Fake(usage=False, counts=False)) as one:
        with pytest.raises(ProtocolError, match=r"no usage in the stream; expected stream_options\.include_usage"):
            await one.hear("a", 1)
    async with endpoint(Fake(hook=busy)) as one:
        with pytest.raises(Refused, match="no room for request 1"):
            await one.hear("a", 1)
    async with endpoint(Fake(hook=lambda count: web.Response(text="data: {nonsense\n\n"))) as one:
        with pytest.raises(ProtocolError, match="bad_reply"):
            await one.hear("a", 1)
    said = 'data: {"error": {"message": "the engine died", "code": 500}}\n\n'
    async with endpoint(Fake(hook=lambda count: web.Response(text=said))) as one:
        with pytest.raises(PeerFailure, match="500: the engine died"):
            await one.hear("a", 1)


async def test_nobody_there_and_nobody_who_answers() -> None:
    async with serving(Fake()) as url:
        pass
    async with make_session() as session:
        with pytest.raises(PeerFailure, match="unreachable"):
            await Endpoint(session, f"{url}/v1", Served("fake", None), 5).hear("a", 1)
        with pytest.raises(PeerFailure, match="unreachable"):
            await discover(session, f"{url}/v1", None, 30)
    async with serving(Fake(batches=[2])) as url, make_session() as session:
        with pytest.raises(PeerFailure, match=r"timeout: no whole answer within 0\.05 s"):
            await Endpoint(session, f"{url}/v1", Served("fake", None), 0.05).hear("a", 5)


async def test_discovery() -> None:
    async with serving(Fake(longest=512)) as url, make_session() as session:
        assert await discover(session, f"{url}/v1", None, 30) == Served("fake", 512)
        with pytest.raises(ConfigError, match="no model 'x'; expected one of fake"):
            await discover(session, f"{url}/v1", "x", 30)
    async with serving(Fake(models=("a", "b"))) as url, make_session() as session:
        assert (await discover(session, f"{url}/v1", "b", 30)).model == "b"
        with pytest.raises(ConfigError, match="serves a, b; expected --model with one of them"):
            await discover(session, f"{url}/v1", None, 30)
    async with serving(Fake(key="k")) as url:
        async with make_session() as session:
            with pytest.raises(ConfigError, match=r"HTTP 401: no such key; expected a key in \$OPENAI_API_KEY"):
                await discover(session, f"{url}/v1", None, 30)
        async with make_session("k") as session:
            assert (await discover(session, f"{url}/v1", None, 30)).model == "fake"
            with pytest.raises(Refused):
                await discover(session, f"{url}/v2", None, 30)
            assert await discover(session, f"{url}/v2", "m", 30) == Served("m", None)


async def test_discovery_takes_no_longer_than_asked_for() -> None:
    fake = Fake(deaf=True)
    async with serving(fake) as url, make_session() as session:
        with pytest.raises(PeerFailure, match=r"timeout: GET .*/v1/models took too long"):
            await discover(session, f"{url}/v1", None, 0.05)


def test_urls() -> None:
    assert endpoint_url("http://h:1") == endpoint_url("http://h:1/v1/") == "http://h:1/v1"
    assert endpoint_url("https://a.b.") == "https://a.b./v1"
    assert endpoint_url("http://[::1]:8/x") == "http://[::1]:8/x/v1"


@pytest.mark.parametrize(
    "wrong",
    [
        *("h:1", "ftp://h", "http://", "http:///v1", "", "http://h:99999", "http://h:0", "http://h:x", "http://[::1"),
        *("http://a..b", "http://" + "a" * 64, "http://a b", "http://a\nb"),
    ],
)
def test_bad_urls_are_echoed_as_they_are(wrong: str) -> None:
    with pytest.raises(ConfigError, match="expected an endpoint such as http") as caught:
        endpoint_url(wrong)
    assert str(caught.value).startswith(f"got {wrong!r}; ")


@pytest.mark.parametrize("wrong", ["http://me:secret@h", "me:secret@h", "http://h/v1?k=secret", "http://h#secret"])
def test_secrets_in_urls_are_not_echoed(wrong: str) -> None:
    with pytest.raises(ConfigError, match="a user, a query or a fragment") as caught:
        endpoint_url(wrong)
    assert "secret" not in str(caught.value)
