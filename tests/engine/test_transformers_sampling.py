"""Choosing tokens: greedy, temperature, nucleus, seeds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from prfaas.engine.base import Sampling
from prfaas.engine.transformers.sampling import Sampler
from prfaas.testing.gather import gather

SCORES = torch.tensor([0.0, 1.0, 2.0, 3.0])


def drawn(sampling: Sampling, count: int = 2000) -> Counter[int]:
    sampler = Sampler(sampling)
    return Counter(sampler.choose(SCORES) for _ in range(count))


def test_greedy_is_the_best_score() -> None:
    assert drawn(Sampling(1, temperature=0.0), 10) == {3: 10}


def test_frequencies_follow_the_softmax() -> None:
    found = drawn(Sampling(1, seed=1), 4000)
    for index, share in enumerate(SCORES.softmax(-1).tolist()):
        assert found[index] / 4000 == pytest.approx(share, abs=0.03)


def test_a_low_temperature_sharpens() -> None:
    assert drawn(Sampling(1, temperature=0.1, seed=1), 500)[3] > 490


def test_the_nucleus_leaves_out_the_tail() -> None:
    assert set(drawn(Sampling(1, top_p=0.85, seed=1))) == {2, 3}


def test_a_seed_repeats_and_none_does_not() -> None:
    def run(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(1, seed=seed))
        return [sampler.choose(SCORES) for _ in range(100)]

    assert run(7) == run(7) != run(8)
    assert run(-1) == run(-1)
    assert run(None) != run(None)


async def test_a_seeded_answer_is_the_same_from_landed_kv(engine: Any) -> None:
    both = await engine()
    tokens = [(i * 7) % 256 for i in range(150)]
    sampling = Sampling(12, temperature=0.8, top_p=0.9, seed=3)
    landed = (await gather(both, tokens[:-1])).landed
    one = [token async for token in both.generate(tokens, sampling, landed)]
    assert one == [token async for token in both.generate(tokens, sampling, None)]
