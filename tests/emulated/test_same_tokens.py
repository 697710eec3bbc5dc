"""Right KV gives the answer that one engine alone gives; any other KV gives another one."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from prfaas.core.cache.layout import PartKind
from prfaas.core.errors import ProtocolError
from prfaas.engine.base import NO_TOKEN, Sampling
from prfaas.engine.emulated.layouts import LAYOUTS, layout_of
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.model.bytemodel import EOS
from prfaas.testing.gather import gather
from prfaas.transport.base import LandedKV
from tests.emulated.conftest import LETTERS, Make, answer, greedy, ids

BOUNDARIES = [2, 3, 63, 64, 65, 66, 99, 100, 101, 102, 127, 128, 129, 511, 512, 513, 2047, 2048, 2049, 2050, 4097]


def prompt(length: int) -> list[int]:
    return random.Random(length).choices(range(32, 127), k=length)


@pytest.mark.parametrize("length", BOUNDARIES)
@pytest.mark.parametrize("chunk", [64, 100, 2048])
async def test_landed_and_alone_agree_at_every_boundary(make: Make, length: int, chunk: int) -> None:
    tokens = prompt(length)
    far = make(chunk_tokens=chunk)
    landed = (await gather(far, tokens[:-1])).landed
    home = make(profile="paper-h20", chunk_tokens=96)
    assert ids(await answer(home, tokens, landed=landed)) == ids(await answer(far, tokens))


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_all_layouts_land(make: Make, layout: str) -> None:
    tokens = prompt(700)
    engine = make(layout, bytes_scale=1 / 1024, chunk_tokens=256)
    sink = await gather(engine, tokens[:-1])
    assert ids(await answer(engine, tokens, landed=sink.landed)) == ids(await answer(engine, tokens))
    assert {extent.layer for extent, _ in sink.puts} == set(engine.layout.layers())


def test_layouts_have_every_kind_of_part_and_the_papers_weight() -> None:
    kinds = {part.kind for name in LAYOUTS for part in layout_of(name, 1.0).parts}
    assert kinds == set(PartKind)
    assert {part.kind for part in layout_of("hybrid", 1.0).parts} == set(PartKind)
    paper = layout_of("paper-1t", 1.0)
    measured_mib = {1024: 190.8, 8192: 308.9}
    for tokens, mib in measured_mib.items():
        assert paper.bytes_at(tokens) / 2**20 == pytest.approx(mib, rel=0.01)
    small = layout_of("paper-1t", 1 / 64)
    assert small.bytes_at(8192) == pytest.approx(paper.bytes_at(8192) / 64, rel=0.01)
    assert [part.kind for part in small.parts] == [part.kind for part in paper.parts]


def broken(landed: LandedKV) -> Iterator[tuple[str, LandedKV]]:
    for key, data in landed.parts.items():
        for at in (0, len(data) // 2, len(data) - 1):
            bad = bytearray(data)
            bad[at] ^= 0x10
            yield f"{key} byte {at}", LandedKV(landed.length, 0, {**landed.parts, key: bad})
        yield f"{key} short", LandedKV(landed.length, 0, {**landed.parts, key: data[:-1]})
        yield f"{key} long", LandedKV(landed.length, 0, {**landed.parts, key: data + b"x"})
        yield f"{key} missing", LandedKV(landed.length, 0, {k: v for k, v in landed.parts.items() if k != key})
    yield "all missing", LandedKV(landed.length)


@pytest.mark.parametrize("layout", ["hybrid", "window"])
async def test_wrong_or_incomplete_kv_gives_another_answer(make: Make, layout: str) -> None:
    tokens = prompt(333)
    engine = make(layout)
    right = ids(await answer(engine, tokens))
    landed = (await gather(engine, tokens[:-1])).landed
    seen = {tuple(right)}
    for what, bad in broken(landed):
        wrong = ids(await answer(engine, tokens, landed=bad))
        assert wrong != right, what
        seen.add(tuple(wrong))
    assert len(seen) > len(landed.parts), "what is wrong should make a difference"


async def test_kv_of_another_prompt_gives_another_answer(make: Make) -> None:
    engine, tokens = make(), prompt(200)
    other = [*tokens]
    other[0] ^= 1
    landed = (await gather(engine, other[:-1])).landed
    assert ids(await answer(engine, tokens, landed=landed)) != ids(await answer(engine, tokens))


async def test_an_answer_can_be_gone_on_with(make: Make) -> None:
    """As with a model: the prompt and the beginning of its answer give the rest of it."""
    engine, tokens = make(), prompt(150)
    whole = ids(await answer(engine, tokens, greedy(20)))
    assert ids(await answer(engine, [*tokens, *whole[:7]], greedy(13))) == whole[7:]


async def test_answers_are_printable_and_end(make: Make) -> None:
    engine = make()
    stops, lengths = frozenset({EOS}), []
    for seed in range(30):
        made = await answer(engine, prompt(50 + seed), greedy(2000, stop_ids=stops))
        assert set(ids(made[:-1])) <= set(LETTERS.printable)
        assert made[-1].finish in ("stop", "length")
        lengths.append(len(made))
    assert 100 < sum(lengths) / len(lengths) < 600
    ignoring = await answer(engine, prompt(50), greedy(2000))
    assert len(ignoring) == 2000
    assert ignoring[-1].finish == "length"
    assert EOS in ids(ignoring)


async def test_seeds_are_respected(make: Make) -> None:
    tokens = prompt(80)

    async def drawn(seed: int | None) -> list[int]:
        return ids(await answer(make(), tokens, Sampling(max_tokens=16, temperature=0.7, seed=seed)))

    assert await drawn(5) == await drawn(5)
    assert len({tuple(await drawn(seed)) for seed in (0, 1, -1, 2**63, 2**64 - 2)}) == 5
    assert await drawn(None) != await drawn(None)
    assert await drawn(5) != ids(await answer(make(), tokens))


async def test_prefixes_share_blocks(make: Make) -> None:
    """Rows of full blocks depend on what came before alone, so that a prefix can be reused."""
    engine, tokens = make(), prompt(300)
    one = (await gather(engine, tokens[:130])).landed
    two = (await gather(engine, tokens)).landed
    assert two.parts[0, "k"][: 128 * 8] == one.parts[0, "k"][: 128 * 8]


async def test_logprobs(make: Make) -> None:
    engine, tokens = make(), prompt(40)
    made = await answer(engine, tokens, greedy(3, logprobs=2, prompt_logprobs=1))
    assert len(made[0].prompt) == 40
    assert made[0].prompt[0] is None
    assert made[1].prompt == ()
    for token in made:
        assert token.logprobs is not None
        assert token.logprobs.top[0] == (token.id, token.logprobs.own)
        assert len(token.logprobs.top) == 2
    (scored,) = await answer(engine, tokens, greedy(0, prompt_logprobs=0))
    assert (scored.id, scored.finish, len(scored.prompt)) == (NO_TOKEN, "length", 40)


async def test_a_prefix_of_other_tokens_is_not_adopted(make: Make) -> None:
    engine, tokens = make(), prompt(256)
    spec = spec_of(engine.layout, 64)
    assert spec is not None
    right, wrong = [(await gather(engine, some)).landed for some in (tokens, tokens[::-1])]
    reuse = Reuse(stops=(256,))
    reuse.allowed = 1
    await engine.adopt(tokens, right, reuse)
    assert (reuse.length, len(reuse.made), list(reuse.states)) == (256, 4, [256])
    with pytest.raises(ProtocolError, match="wrong_kv"):
        await engine.adopt(tokens, wrong, Reuse())
