"""What emulated nodes answer, computed here: to compare with what came over clusters, links and faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from prfaas.engine.base import Limits, Sampling
from prfaas.engine.emulated.derive import Letters
from prfaas.engine.emulated.engine import EmulatedEngine
from prfaas.engine.emulated.layouts import layout_of
from prfaas.model.fetch import resolve_model
from prfaas.model.profilefile import load_profile
from prfaas.model.text import Text

Derived = Callable[[str, int], str]


def derived() -> Derived:
    """Greedy text for a plain prompt and a bound on its tokens, of the model `emulated`, by one engine in no time."""
    text = Text.load(resolve_model("emulated"))
    limits = Limits(1 << 18, 8, text.vocab_size, 64, 1 << 12)
    letters = Letters(text.printable(), min(text.stop_ids))
    engine = EmulatedEngine(layout_of("hybrid", 1 / 64), limits, load_profile("paper-h200"), letters, time_scale=0.0)

    async def answer(prompt: str, max_tokens: int) -> str:
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop_ids=text.stop_ids)
        tokens = await text.encode(prompt)
        ids = [token.id async for token in engine.generate(tokens, sampling, None) if token.finish != "stop"]
        return text.decode(ids)

    return lambda prompt, max_tokens: asyncio.run(answer(prompt, max_tokens))
