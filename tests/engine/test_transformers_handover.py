"""Prefill here, decode there: the same tokens as one engine alone, in float32, at every boundary."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prfaas.testing.gather import gather
from prfaas.transport.base import LandedKV

pytestmark = pytest.mark.slow  # real models

BLOCK, CHUNK, WINDOW = 64, 128, 95
OTHERS = ["tiny-gemma3", "tiny-qwen3", "tiny-qwen3-next", "tiny-falcon-h1"]


def around(*boundaries: int) -> list[int]:
    """Prompt lengths N such that N or N - 1 is one less than, equal to or one more than a boundary."""
    return sorted({boundary + step for boundary in boundaries for step in (-1, 0, 1, 2)})


async def check(
    engine: Any, answer: Any, kind: str, lengths: list[int], rng: random.Random, chunk_tokens: int = CHUNK
) -> None:
    prefill, decode = [await engine(kind, chunk_tokens=chunk_tokens) for _ in range(2)]
    assert prefill.layout == decode.layout
    for length in lengths:
        tokens = [rng.randrange(256) for _ in range(length)]
        sink = await gather(prefill, tokens[:-1])
        moved = await answer(decode, tokens, sink.landed)
        assert moved == await answer(decode, tokens, None), f"{kind}, {length} tokens"


async def test_hybrid_at_first_boundaries(engine: Any, answer: Any, rng: random.Random) -> None:
    await check(engine, answer, "tiny-hybrid", [1, 2, *around(BLOCK, CHUNK)], rng)


@pytest.mark.slow
async def test_hybrid_at_every_block_boundary(engine: Any, answer: Any, rng: random.Random) -> None:
    await check(engine, answer, "tiny-hybrid", around(*range(3 * BLOCK, 513, BLOCK)), rng)


@pytest.mark.slow
async def test_hybrid_up_to_2k(engine: Any, answer: Any, rng: random.Random) -> None:
    await check(engine, answer, "tiny-hybrid", around(2048), rng)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHERS)
async def test_other_families(engine: Any, answer: Any, rng: random.Random, kind: str) -> None:
    """Gemma keeps the rows of a window of 95: lengths below, at and above it, within and across chunks."""
    first = [1, 2, 3, *around(BLOCK, WINDOW, CHUNK, CHUNK + WINDOW, 2 * CHUNK, 2 * CHUNK + BLOCK), 700]
    await check(engine, answer, kind, [*first, *around(2048)], rng)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", [CHUNK, 256])
@pytest.mark.parametrize("kind", ["tiny-hybrid", *OTHERS])
async def test_every_family_up_to_8k(engine: Any, answer: Any, rng: random.Random, kind: str, chunk: int) -> None:
    """Every block boundary to 2K, with the window's; then those of 4K and 8K."""
    blocks = range(BLOCK, 2049, BLOCK)
    lengths = [1, *around(*blocks, *(block + WINDOW for block in blocks[:8])), *around(4096, 8192)]
    await check(engine, answer, kind, lengths, rng, chunk_tokens=chunk)


async def test_several_hand_overs_at_once(engine: Any, answer: Any, rng: random.Random) -> None:
    import asyncio

    prefill, decode = await engine(), await engine()
    prompts = [[rng.randrange(256) for _ in range(length)] for length in (40, 129, 300, 513, 700)]

    async def one(tokens: list[int]) -> list[int]:
        found: list[int] = await answer(decode, tokens, (await gather(prefill, tokens[:-1])).landed)
        return found

    together = await asyncio.gather(*(one(tokens) for tokens in prompts))
    assert together == [await answer(decode, tokens, None) for tokens in prompts]


_OTHER_PROCESS = """
import asyncio, json, sys
from pathlib import Path
from prfaas.engine.base import Sampling
from prfaas.engine.transformers.engine import TransformersEngine

class Sink:
    def __init__(self): self.manifest, self.file = [], open(sys.argv[2], "wb")
    def put(self, extent, data):
        self.manifest.append([extent.layer, extent.part, extent.start, data.nbytes]); self.file.write(data)

async def main():
    engine = TransformersEngine(Path(sys.argv[1]), kv_blocks=64, chunk_tokens=128)
    await engine.start()
    tokens, sink = json.loads(sys.stdin.read()), Sink()
    await engine.prefill(tokens[:-1], sink)
    sink.file.close()
    answer = [token.id async for token in engine.generate(tokens, Sampling(24, temperature=0.0), None)]
    await engine.close()
    print(json.dumps({"revision": engine.layout.revision, "manifest": sink.manifest, "answer": answer}))

asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny-hybrid", "tiny-gemma3"])
async def test_prefill_in_another_process(
    engine: Any, answer: Any, tiny: Any, tmp_path: Path, rng: random.Random, kind: str
) -> None:
    tokens = [rng.randrange(256) for _ in range(450)]
    decode = await engine(kind)
    done = subprocess.run(  # noqa: ASYNC221 - nothing else runs in this test's loop
        [sys.executable, "-c", _OTHER_PROCESS, str(tiny(kind)), str(tmp_path / "kv")],
        input=json.dumps(tokens), capture_output=True, text=True, timeout=100, check=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["revision"] == decode.layout.revision
    landed, length = LandedKV(len(tokens) - 1), len(tokens) - 1
    parts = {(part.layer, part.name): part for part in decode.layout.parts}
    raw, at = (tmp_path / "kv").read_bytes(), 0
    for layer, name, start, size in told["manifest"]:
        part = parts[layer, name]
        buffer = landed.parts.setdefault((layer, name), bytearray(part.bytes_at(length)))
        offset = 0 if part.kind == "state" else (start - part.first_row(length)) * part.unit_bytes
        buffer[offset : offset + size] = raw[at : at + size]
        at += size
    assert at == len(raw) == decode.layout.bytes_at(length)
    assert await answer(decode, tokens, landed, 24) == told["answer"]


@pytest.mark.parametrize("kind", ["tiny-hybrid", "tiny-gemma3"])
async def test_a_spoilt_piece_of_any_part_is_heard(engine: Any, answer: Any, kind: str) -> None:
    """So the equality above is no accident: each part is read, its first rows and its last."""
    both = await engine(kind)
    chance = random.Random(1)
    tokens = [chance.randrange(256) for _ in range(200)]
    landed = (await gather(both, tokens[:-1])).landed
    clean = await answer(both, tokens, landed)
    for part in both.layout.parts:
        buffer = landed.parts[part.layer, part.name]
        whole = bytes(buffer)
        for piece in (slice(0, len(whole) // 8), slice(-len(whole) // 8, None)):
            buffer[piece] = whole[piece][::-1]
            assert await answer(both, tokens, landed) != clean, f"{part} {piece}"
            buffer[:] = whole
    assert await answer(both, tokens, landed) == clean


async def test_rows_are_those_of_the_right_tokens(engine: Any) -> None:
    """The same tokens behind another first token: what sees only itself is the same, all else differs."""
    both = await engine("tiny-gemma3")
    tokens = [7 * i % 251 for i in range(90)]
    one, other = await gather(both, [1, *tokens]), await gather(both, [2, *tokens])
    for key, buffer in one.landed.parts.items():
        size = len(buffer) // 91
        same = [buffer[at : at + size] == other.landed.parts[key][at : at + size] for at in range(0, len(buffer), size)]
        assert same == [False] + [key[0] == 0] * 90
