"""One system of tiny-hybrid for the module's tests, and what a single process answers, to compare with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prfaas.engine.base import Sampling
from prfaas.engine.transformers.engine import TransformersEngine
from prfaas.model.fetch import resolve_model
from prfaas.model.text import Text
from tests.e2e.system import System

ROOT = Path(__file__).parents[2]
Reference = Callable[[str, int], str]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """`prfaas up examples/two-clusters.yaml --model tiny-hybrid`."""
    system = System.start(ROOT / "examples/two-clusters.yaml", tmp_path_factory.mktemp("state"), "tiny-hybrid")
    yield system
    assert system.stop() == 0


@pytest.fixture(scope="session")
def one_process() -> Reference:
    """Greedy text of tiny-hybrid for a plain prompt, computed whole in this process, with the nodes' own settings."""
    directory = resolve_model("tiny-hybrid")

    async def answer(prompt: str, max_tokens: int) -> str:
        text = Text.load(directory)
        engine = TransformersEngine(directory, chunk_tokens=256, threads=1, kv_blocks=4096, block_tokens=64)
        await engine.start()
        try:
            tokens = await text.encode(prompt)
            sampling = Sampling(max_tokens=max_tokens, temperature=0.0, stop_ids=text.stop_ids)
            ids = [token.id async for token in engine.generate(tokens, sampling, None) if token.finish != "stop"]
            return text.decode(ids)
        finally:
            await engine.close()
            text.close()

    return lambda prompt, max_tokens: asyncio.run(answer(prompt, max_tokens))
