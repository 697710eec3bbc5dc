"""Log-probabilities: those of the model's own scores, the same whichever way the KV came."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch

from prfaas.core.errors import InvariantError, RequestError
from prfaas.engine.base import NO_TOKEN, Sampling, Token
from prfaas.engine.transformers.likely import ROWS, likelihoods
from prfaas.testing.gather import gather

pytestmark = pytest.mark.slow  # real models


async def told(engine: Any, tokens: list[int], sampling: Sampling, landed: Any = None) -> list[Token]:
    return [token async for token in engine.generate(tokens, sampling, landed)]


def whole(engine: Any, tokens: list[int]) -> Any:
    """(tokens, vocabulary) of log-probabilities, by one call of the bare model."""
    with torch.inference_mode():
        return engine._model._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)


def test_more_rows_than_are_taken_at_once() -> None:
    scores = torch.randn(2 * ROWS + 3, 40, generator=torch.Generator().manual_seed(1))
    chosen = [row % 40 for row in range(len(scores))]
    expected = scores.log_softmax(-1)
    found = likelihoods(scores, chosen, 3)
    assert [one.own for one in found] == [float(row[at]) for row, at in zip(expected, chosen, strict=True)]
    for one, row in zip(found, expected, strict=True):
        assert [value for _, value in one.top] == sorted((value for _, value in one.top), reverse=True)
        assert one.top[0] == (int(row.argmax()), float(row.max()))
    assert len(likelihoods(scores, chosen, 100)[0].top) == 40


@pytest.mark.parametrize("kind", ["tiny-hybrid", "tiny-gemma3"])
async def test_prompts_and_answers_are_scored_as_the_bare_model_scores_them(
    engine: Any, rng: random.Random, kind: str
) -> None:
    made = await engine(kind)
    tokens = [rng.randrange(256) for _ in range(300)]
    found = await told(made, tokens, Sampling(6, temperature=0.0, logprobs=2, prompt_logprobs=4))
    ids = [token.id for token in found]
    logs = whole(made, tokens + ids)
    assert found[0].prompt[0] is None
    assert len(found[0].prompt) == len(tokens)
    assert all(token.prompt == () for token in found[1:])
    everything = [*found[0].prompt[1:], *(token.logprobs for token in found)]
    for row, token, one in zip(logs, (tokens + ids)[1:], everything, strict=False):
        assert one is not None
        assert one.own == pytest.approx(float(row[token]), abs=2e-3)
        best = row.topk(4)
        assert [value for _, value in one.top] == pytest.approx(best.values[: len(one.top)].tolist(), abs=2e-3)
    assert [len(token.logprobs.top) for token in found if token.logprobs] == [2] * 6
    for token in found:  # greedy: the likeliest
        assert token.logprobs is not None
        assert token.logprobs.top[0] == (token.id, token.logprobs.own)


async def test_they_do_not_depend_on_where_the_kv_came_from_nor_on_the_temperature(
    engine: Any, rng: random.Random
) -> None:
    prefill, decode = await engine(), await engine()
    tokens = [rng.randrange(256) for _ in range(270)]
    sampling = Sampling(8, temperature=0.0, logprobs=5)
    landed = (await gather(prefill, tokens[:-1])).landed
    alone = await told(decode, tokens, sampling)
    assert await told(decode, tokens, sampling, landed) == alone
    warm = await told(decode, tokens, Sampling(1, temperature=1.7, top_p=0.5, seed=3, logprobs=5), landed)
    assert warm[0].logprobs is not None
    assert alone[0].logprobs is not None
    assert warm[0].logprobs.top == alone[0].logprobs.top
    scored = await told(decode, tokens, Sampling(8, temperature=0.0, logprobs=5, prompt_logprobs=0))
    assert [token.logprobs for token in scored] == [token.logprobs for token in alone]
    assert all(one is None or one.top == () for one in scored[0].prompt)
    assert all(token.logprobs is None for token in await told(decode, tokens, Sampling(2)))


async def test_only_the_prompt(engine: Any, rng: random.Random) -> None:
    made = await engine("tiny-qwen3", kv_blocks=4, max_model_len=200)
    tokens = [rng.randrange(256) for _ in range(200)]  # all that the context holds
    (only,) = await told(made, tokens, Sampling(0, prompt_logprobs=1))
    assert (only.id, only.finish, only.logprobs, len(only.prompt)) == (NO_TOKEN, "length", None, 200)
    assert sum(one.own for one in only.prompt if one) < -200 * math.log(2)
    (one,) = await told(made, tokens[:1], Sampling(0, prompt_logprobs=1))
    assert one.prompt == (None,)
    with pytest.raises(RequestError, match="max_tokens"):
        await told(made, tokens, Sampling(0))
    with pytest.raises(RequestError, match="do not fit"):
        await told(made, tokens, Sampling(1))
    with pytest.raises(RequestError, match="do not fit"):
        await told(made, [*tokens, 1], Sampling(0, prompt_logprobs=1))
    landed = (await gather(made, tokens[:10])).landed
    with pytest.raises(InvariantError):
        await told(made, tokens[:11], Sampling(1, prompt_logprobs=1), landed)
    assert made.running == 0
