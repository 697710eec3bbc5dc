"""Faults strike where, when and how often they are told to."""

from __future__ import annotations

import asyncio

import pytest

from prfaas.config.topology import POINTS, Fault
from prfaas.core.errors import RequestError
from prfaas.engine.emulated.faults import DIED, Faults
from prfaas.engine.emulated.prefill import EmulatedFailure
from prfaas.testing.gather import gather
from prfaas.testing.kv import bytes_of
from tests.emulated.conftest import Make, answer, greedy, ids

TOKENS = [65 + at % 50 for at in range(500)]


class Died(Exception):
    """Instead of the end of the process."""


def deadly(at: str, **other: object) -> Faults:
    def end(code: int) -> None:
        assert code == DIED
        raise Died

    return Faults([Fault(at=at, do="die", **other)], end)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "at", ["prefill:start", "prefill:chunk:2", "prefill:chunk", "prefill:last_layer", "prefill:end"]
)
async def test_it_dies_at_a_point_of_prefill(make: Make, at: str) -> None:
    engine = make(chunk_tokens=100, faults=deadly(at))
    with pytest.raises(Died):
        await gather(engine, TOKENS)
    assert engine.running == 0


async def test_how_much_has_left_when_it_dies(make: Make) -> None:
    """The points are where they say: what had been handed over by then is known."""
    came: dict[str, int] = {}
    for at in ("prefill:start", "prefill:chunk:2", "prefill:last_layer", "prefill:end"):
        engine = make("dense", chunk_tokens=100, faults=deadly(at))
        extents = []

        class Sink:
            def put(self, extent: object, data: memoryview, extents: list[object] = extents) -> None:
                extents.append(extent)

        with pytest.raises(Died):
            await engine.prefill(TOKENS, Sink())
        came[at] = len(extents)
    per_chunk, per_layer = 16, 2
    assert came == {
        "prefill:start": 0,
        "prefill:chunk:2": 2 * per_chunk,
        "prefill:last_layer": 5 * per_chunk - per_layer,
        "prefill:end": 5 * per_chunk,
    }


@pytest.mark.parametrize(
    ("at", "before"), [("landed", 0), ("decode:first", 0), ("decode:token:5", 5), ("decode:token", 0)]
)
async def test_it_dies_at_a_point_of_decode(make: Make, at: str, before: int) -> None:
    landed = (await gather(make(), TOKENS[:-1])).landed
    engine, made = make(faults=deadly(at)), []

    async def listen() -> None:
        async for token in engine.generate(TOKENS, greedy(), landed):
            made.append(token)

    with pytest.raises(Died):
        await listen()
    assert len(made) == before
    assert engine.running == 0


async def test_it_dies_while_it_starts(make: Make) -> None:
    with pytest.raises(Died):
        await make(faults=deadly("start")).start()


async def test_what_fails_fails_alone(make: Make) -> None:
    engine = make(faults=Faults([Fault(at="decode:token:3", do="fail", times=1)]))
    both = await asyncio.gather(answer(engine, TOKENS), answer(engine, TOKENS), return_exceptions=True)
    failed = [one for one in both if isinstance(one, EmulatedFailure)]
    assert [str(error) for error in failed] == ["told to fail at decode:token:3"]
    assert [len(one) for one in both if isinstance(one, list)] == [16]
    assert engine.running == 0
    failing = make(faults=Faults([Fault(at="prefill:chunk:1", do="fail")]), chunk_tokens=100)
    with pytest.raises(EmulatedFailure, match="told to fail at prefill:chunk:1"):
        await gather(failing, TOKENS)


@pytest.mark.parametrize("at", ["prefill:start", "prefill:chunk:2", "prefill:last_layer"])
async def test_kv_that_it_corrupts_is_wrong_in_one_bit(make: Make, at: str) -> None:
    right = await gather(make(chunk_tokens=100), TOKENS[:-1])
    wrong = await gather(make(chunk_tokens=100, faults=Faults([Fault(at=at, do="corrupt")])), TOKENS[:-1])
    good, bad = bytes_of(right.landed), bytes_of(wrong.landed)
    differing = [x ^ y for key in good for x, y in zip(good[key], bad[key], strict=True) if x != y]
    assert differing == [1]
    engine = make()
    assert ids(await answer(engine, TOKENS, landed=wrong.landed)) != ids(await answer(engine, TOKENS))


async def test_it_corrupts_what_landed(make: Make) -> None:
    landed = (await gather(make(), TOKENS[:-1])).landed
    engine = make(faults=Faults([Fault(at="landed", do="corrupt")]))
    assert ids(await answer(engine, TOKENS, landed=landed)) != ids(await answer(engine, TOKENS))


async def test_a_wrong_token(make: Make) -> None:
    right = ids(await answer(make(), TOKENS))
    wrong = ids(await answer(make(faults=Faults([Fault(at="decode:token:5", do="wrong_token")])), TOKENS))
    assert wrong[:5] == right[:5]
    assert wrong[5:] != right[5:]


async def test_stalled_sequences_end_when_nobody_waits_or_the_engine_closes(make: Make) -> None:
    engine = make(faults=Faults([Fault(at="decode:token:2", do="stall"), Fault(at="prefill:chunk:1", do="stall")]))
    decode = asyncio.create_task(answer(engine, [65]))
    prefill = asyncio.create_task(gather(engine, [65] * 5000))
    leaving = asyncio.create_task(answer(engine, [66]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert engine.running == 3
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert engine.running == 2
    await engine.close()
    for task in (decode, prefill):
        with pytest.raises(RequestError, match="shutting down"):
            await task
    assert engine.running == 0
    with pytest.raises(RequestError, match="shutting down"):
        await answer(engine, [65])


def test_chance_is_seeded() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults([Fault(at="decode:token", do="wrong_token", probability=0.3, seed=seed)])
        return [faults.at(f"decode:token:{at}").wrong_token for at in range(1000)]

    assert strikes(1) == strikes(1)
    assert strikes(1) != strikes(2)
    assert 240 < sum(strikes(1)) < 360
    never = Faults([Fault(at="decode:token", do="wrong_token", probability=0.0)])
    assert not any(never.at("decode:token:0").wrong_token for _ in range(100))


def test_times_and_points() -> None:
    faults = Faults([Fault(at="prefill:chunk", do="fail", times=2), Fault(at="prefill:chunk:1", do="slow", factor=2.0)])
    seen = [(faults.at(f"prefill:chunk:{at}").fail, faults.at(f"prefill:chunk:{at}").factor) for at in (0, 1, 11)]
    assert seen == [(True, 1.0), (False, 2.0), (False, 1.0)]
    assert [times for _, times in faults.struck] == [2, 2]
    faults.replace([])
    assert faults.struck == []
    assert not faults.at("prefill:chunk:1").fail
    both = Faults([Fault(at="landed", do="slow", factor=2.0), Fault(at="landed", do="slow", factor=3.0)])
    assert both.at("landed").factor == 6.0


def test_it_cuts_connections() -> None:
    cuts: list[str] = []
    faults = Faults([Fault(at="prefill:last_layer", do="cut", times=2)], cut=lambda: cuts.append("cut"))
    for _ in range(3):
        assert not faults.at("prefill:last_layer").fail
    assert cuts == ["cut", "cut"]


def test_every_point_is_in_the_documentation() -> None:
    from prfaas.engine.emulated import faults

    assert faults.__doc__ is not None
    for point in POINTS:
        assert f"\n    {point.replace(':N', '[:N]')} " in faults.__doc__
