"""Emulated engines for tests, and the ways to ask them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from prfaas.engine.base import Limits, Sampling, Token
from prfaas.engine.emulated.derive import Letters
from prfaas.engine.emulated.engine import EmulatedEngine
from prfaas.engine.emulated.layouts import layout_of
from prfaas.model.bytemodel import EOS, VOCAB
from prfaas.model.profilefile import load_profile
from prfaas.transport.base import LandedKV

LIMITS = Limits(max_model_len=1 << 16, max_sequences=8, vocab_size=VOCAB, block_tokens=64, kv_blocks=1 << 12)
LETTERS = Letters(tuple(range(0x20, 0x7F)), EOS)

Make = Callable[..., EmulatedEngine]


def engine(
    layout: str = "hybrid",
    profile: str = "paper-h200",
    time_scale: float = 0.0,
    bytes_scale: float = 1 / 64,
    limits: Limits = LIMITS,
    **other: Any,
) -> EmulatedEngine:
    """A small one in which no time passes, unless told otherwise."""
    return EmulatedEngine(
        layout_of(layout, bytes_scale), limits, load_profile(profile), LETTERS, time_scale=time_scale, **other
    )


@pytest.fixture
def make() -> Make:
    return engine


def greedy(max_tokens: int = 16, **other: Any) -> Sampling:
    """Likeliest tokens, to the full length."""
    return Sampling(max_tokens=max_tokens, temperature=0.0, **other)


async def answer(
    engine: EmulatedEngine, tokens: Sequence[int], sampling: Sampling | None = None, landed: LandedKV | None = None
) -> list[Token]:
    """All tokens."""
    return [token async for token in engine.generate(tokens, sampling or greedy(), landed)]


def ids(tokens: Sequence[Token]) -> list[int]:
    return [token.id for token in tokens]
