"""Choosing the next token from its scores: transformers' own warpers, one seeded generator a sequence.

It knows temperature, nucleus and seed; it does not know models or stops. Always on the CPU, so that a seed means the
same draw on every device.
"""

from __future__ import annotations

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopPLogitsWarper

from prfaas.core.errors import RequestError
from prfaas.engine.base import Sampling

LEAST_TEMPERATURE = 1e-5
"""Below it the likeliest token is taken, as vLLM does: dividing by less makes infinities of scores."""


class Sampler:
    """One sequence's chooser."""

    def __init__(self, sampling: Sampling) -> None:
        """Raises RequestError when a value is outside what OpenAI's API allows."""
        if not 0 <= sampling.temperature <= 2:
            raise RequestError("expected a temperature from 0 to 2", param="temperature", code="invalid_value")
        if not 0 < sampling.top_p <= 1:
            raise RequestError("expected top_p above 0, at most 1", param="top_p", code="invalid_value")
        self._greedy = sampling.temperature < LEAST_TEMPERATURE
        self._warpers = []
        if not self._greedy and sampling.temperature != 1:
            self._warpers.append(TemperatureLogitsWarper(float(sampling.temperature)))
        if not self._greedy and sampling.top_p < 1:
            self._warpers.append(TopPLogitsWarper(float(sampling.top_p)))
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed & (2**64 - 1))

    def choose(self, scores: torch.Tensor) -> int:
        """A token id from `scores`, float32 of (vocabulary,)."""
        if self._greedy:
            return int(scores.argmax())
        scores = scores.unsqueeze(0)
        for warper in self._warpers:
            scores = warper(None, scores)
        return int(torch.multinomial(scores.softmax(-1), 1, generator=self._generator))
