"""How likely tokens were: scores to log-probabilities.

It knows scores as the model gives them, before temperature and nucleus, as OpenAI's API shows them. It does not know
why a token was chosen.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prfaas.engine.base import Logprobs

ROWS = 32
"""Rows in float32 at a time: a chunk's scores over a large vocabulary are hundreds of megabytes."""


def likelihoods(scores: torch.Tensor, chosen: Sequence[int], top: int) -> list[Logprobs]:
    """One entry per row of `scores`, (rows, vocabulary) of any float type, for the id that came there."""
    found: list[Logprobs] = []
    top = min(top, scores.shape[-1])
    for start in range(0, len(chosen), ROWS):
        ids = torch.tensor(chosen[start : start + ROWS]).unsqueeze(1)
        logs = scores[start : start + ROWS].to(device="cpu", dtype=torch.float32).log_softmax(-1)
        own = logs.gather(1, ids).squeeze(1).tolist()
        best = logs.topk(top)
        for one, values, which in zip(own, best.values.tolist(), best.indices.tolist(), strict=True):
            found.append(Logprobs(one, tuple(zip(which, values, strict=True))))
    return found
