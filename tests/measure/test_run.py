"""A whole run against an endpoint that answers at once: what is asked, kept, taken up again, and where it stops."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from tests.measure.fake import BASE, Fake, busy, serving

from prfaas.core.errors import PeerFailure
from prfaas.measure.ask import Endpoint, Served
from prfaas.measure.prompts import WORDS, Prompts
from prfaas.measure.run import Measuring
from prfaas.measure.samples import Journal, Probe, Run, Sample, Settings
from prfaas.runtime.client import Refused, make_session

SETTINGS = Settings(lengths=(300, 600), cached=(1200,), batches=(1, 3), contexts=(300,), repeats=2, steps=8)
LONGEST = 100_000


@dataclass
class Told:
    """What a run says of itself."""

    begun: list[tuple[Probe, int]] = field(default_factory=list)
    whys: dict[str, str] = field(default_factory=dict)

    def settled(self, probe: Probe, times: list[int], why: str) -> None:
        if why:
            self.whys[probe.text()] = why
        else:
            assert times


async def run(
    fake: Fake, journal: Path, settings: Settings = SETTINGS, longest: int | None = LONGEST
) -> tuple[list[Sample], Told]:
    told = Told()
    kept = Journal(journal, Run("u", "fake", settings))
    fake.batches = fake.batches or [batch for batch in settings.batches for _ in range(settings.repeats)]
    try:
        async with serving(fake) as url, make_session() as session:
            endpoint = Endpoint(session, f"{url}/v1", Served("fake", longest), 30)
            prompts = Prompts(random.Random(1))
            begun = lambda probe, repeat: told.begun.append((probe, repeat))  # noqa: E731
            await Measuring(endpoint, settings, kept, prompts, begun, told.settled).run()
    finally:
        kept.close()
    return kept.samples, told


async def test_a_whole_run(tmp_path: Path) -> None:
    fake = Fake()
    samples, told = await run(fake, tmp_path / "j")
    assert [(one.what, one.x, one.y, one.repeat, one.of) for one in samples] == [
        ("prefill", 300, 0, 0, 300),
        ("prefill", 300, 0, 1, 300),
        ("prefill", 600, 0, 0, 600),
        ("prefill", 600, 0, 1, 600),
        ("prefill", 300, 1200, 0, 300),
        ("prefill", 300, 1200, 1, 300),
        ("prefill", 600, 1200, 0, 600),
        ("prefill", 600, 1200, 1, 600),
        ("decode", 1, 300, 0, 1),
        ("decode", 1, 300, 1, 1),
        ("decode", 3, 300, 0, 3),
        ("decode", 3, 300, 1, 3),
    ]
    assert all(one.ns > 0 for one in samples)
    assert {one.over for one in samples if one.what == "prefill"} == {0, 1200}
    assert all(300 < one.over < 400 for one in samples if one.what == "decode")
    assert told.whys == {}
    assert [probe.text() for probe, _ in told.begun[::2]][:2] == ["prefill of 300 tokens", "prefill of 600 tokens"]


async def test_prompts_are_new_to_every_cache(tmp_path: Path) -> None:
    fake = Fake()
    await run(fake, tmp_path / "j")
    heads = [body["prompt"].split()[:10] for body in fake.asked]
    fresh = [head for at, head in enumerate(heads) if head not in heads[:at]]
    again = SETTINGS.repeats * len(SETTINGS.lengths) * len(SETTINGS.cached)
    assert len(heads) - len(fresh) == again


async def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    fake = Fake(hook=lambda count: busy(count) if count == 6 else None)
    with pytest.raises(Refused, match="no room for request 6"):
        await run(fake, tmp_path / "j")
    fake = Fake()
    samples, told = await run(fake, tmp_path / "j")
    assert len(samples) == 12
    assert told.begun[0] == (Probe("prefill", 600, 0), 1)
    assert len(fake.asked) == 2 + 1 + 1 + 4 + 2 * 1 + 2 * 3
    fake = Fake()
    assert (await run(fake, tmp_path / "j"))[0] == samples
    assert fake.asked == []


async def test_too_long_a_prompt_ends_the_growing(tmp_path: Path) -> None:
    settings = Settings(lengths=(300, 600, 900), cached=(), batches=(1,), contexts=(300, 700), repeats=1, steps=8)
    samples, told = await run(Fake(longest=600), tmp_path / "j", settings, longest=600)
    assert [one.probe.text() for one in samples] == ["prefill of 300 tokens", "decode of 1 at once, 300 tokens each"]
    assert told.whys == {"prefill of 600 tokens": "HTTP 400: This model's maximum context length is 600 tokens."}


async def test_too_long_from_the_start_is_a_failure(tmp_path: Path) -> None:
    settings = Settings(lengths=(3000,), cached=(), batches=(1,), contexts=(300,))
    with pytest.raises(Refused, match="maximum context length is 2000"):
        await run(Fake(longest=2000), tmp_path / "j", settings)


@pytest.mark.parametrize(
    ("cached", "why"),
    [
        (None, "the endpoint does not say how many tokens were cached, of a prefix of 1200 that it had just seen"),
        (False, "the endpoint had 0 cached, of a prefix of 1200 that it had just seen"),
    ],
)
async def test_an_endpoint_without_prefix_cache(tmp_path: Path, cached: bool | None, why: str) -> None:
    samples, told = await run(Fake(cached=cached), tmp_path / "j")
    assert told.whys == {"prefill of 300 tokens after 1200 cached": why}
    assert {one.y for one in samples if one.what == "prefill"} == {0}
    assert sum(one.what == "decode" for one in samples) == 4


async def test_fewer_at_once_than_asked_for(tmp_path: Path) -> None:
    settings = Settings(lengths=(300,), cached=(), batches=(1, 3, 4), contexts=(300,), repeats=1, steps=8)
    samples, told = await run(Fake(room=2, batches=[1, 3, 3]), tmp_path / "j", settings)
    assert [(one.what, one.x) for one in samples] == [("prefill", 300), ("decode", 1)]
    (why,) = told.whys.values()
    assert why == "not all decoded at once: the endpoint runs fewer, or ends answers early"


async def test_a_batch_that_is_refused_ends_the_growing(tmp_path: Path) -> None:
    settings = Settings(lengths=(300,), cached=(), batches=(1, 2), contexts=(300,), repeats=1, steps=8)
    fake = Fake(batches=[1, 2], hook=lambda count: busy(count) if count == 6 else None)
    samples, told = await run(fake, tmp_path / "j", settings)
    assert [(one.what, one.x) for one in samples] == [("prefill", 300), ("decode", 1)]
    assert list(told.whys.values()) == ["HTTP 503: no room for request 6"]


async def test_an_endpoint_that_goes_away_is_a_failure(tmp_path: Path) -> None:
    settings = Settings(lengths=(300,), cached=(), batches=(1,), contexts=(300,), repeats=1, steps=8)
    with pytest.raises(PeerFailure, match="cut_off"):
        await run(Fake(done=False), tmp_path / "j", settings)


@dataclass
class Counted(Prompts):
    """Prompts that count what was made."""

    made: int = 0

    def of_tokens(self, tokens: int) -> str:
        self.made += 1
        return "x"


async def test_the_prompts_of_a_batch_can_be_interrupted(tmp_path: Path) -> None:
    """Making them lets others run, so that Ctrl-C is heard."""
    settings = Settings(lengths=(300,), cached=(), batches=(4096,), contexts=(300,), repeats=1)
    prompts = Counted(random.Random(1))
    journal = Journal(tmp_path / "j", Run("u", "fake", settings))
    async with make_session() as session:
        endpoint = Endpoint(session, "http://127.0.0.1:1/v1", Served("fake", None), 30)
        measuring = Measuring(endpoint, settings, journal, prompts, lambda *_: None, lambda *_: None)
        task = asyncio.create_task(measuring._many(Probe("decode", 4096, 300)))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    journal.close()
    assert 1 <= prompts.made <= 6


async def test_reasons_are_one_line(tmp_path: Path) -> None:
    settings = Settings(lengths=(300, 600), cached=(), batches=(1,), contexts=(300,), repeats=1, steps=8)
    bad = lambda count: web.Response(status=400, text="too\n\x1b[1mlong") if count == 4 else None  # noqa: E731
    _, told = await run(Fake(hook=bad), tmp_path / "j", settings)
    assert told.whys == {"prefill of 600 tokens": "HTTP 400: too [1mlong"}


def test_prompts() -> None:
    prompts = Prompts(random.Random(1))
    prompts.calibrate((200, 400), (202, 402))
    assert len(prompts.of_tokens(1000).split()) == 998
    assert prompts.expected(1000) == 1000
    prompts.calibrate((200, 400), (1001, 2001))
    assert prompts.expected(1000) == 1001
    assert prompts.of_tokens(1) in WORDS
    assert len(prompts.more(50).split()) == 10
    assert {len(word) for word in WORDS} == {4}
    assert BASE == 2
