"""Time to the first token of a prompt that a node has seen, against one that it has not, in the same run.

Real models (`tiny-*`, random weights, float32) in one process behind a node's own KV memory; no HTTP. Of each round: a
prompt of `--tokens` tokens on a node that keeps nothing (the reference), the same one on a node that keeps prefixes and
has not seen it (*fresh*: what keeping costs), that one again (*again*), and the next turn, `--more` tokens longer
(*turn*). Medians of `--rounds`; what is kept takes the same KV memory that sequences work in.

    PYTHONPATH=src python benchmarks/reuse.py [--tokens 8192] [--more 600] [--rounds 3] [--threads 2] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from prfaas.engine.base import Sampling
from prfaas.engine.node.prefixes import Prefixes
from prfaas.engine.reuse import spec_of
from prfaas.engine.transformers.engine import TransformersEngine
from prfaas.engine.transformers.tiny import build_tiny

KINDS = ("tiny-hybrid", "tiny-qwen3-next", "tiny-gemma3", "tiny-falcon-h1", "tiny-qwen3")
BLOCK = 64
MEMORY_BLOCKS = 1024
RESULT = Path(__file__).parents[1] / "docs/benchmarks/reuse.json"


class Node:
    """An engine and its KV memory."""

    def __init__(self, engine: TransformersEngine, keeps: bool) -> None:
        spec = spec_of(engine.layout, BLOCK) if keeps else None
        self.engine, self.prefixes = engine, Prefixes(spec, BLOCK, MEMORY_BLOCKS, copies=True)

    async def first_token_s(self, tokens: list[int]) -> tuple[float, int, int]:
        """Seconds to the first token, tokens that were cached, the token."""
        began = time.perf_counter()
        reuse = self.prefixes.begin("one", self.prefixes.want(len(tokens) + 1, 1, tokens))
        if reuse is None:
            raise SystemExit("no room: expected fewer tokens")
        cached, took, token = reuse.tokens, 0.0, -1
        async for made in self.engine.generate(tokens, Sampling(1, temperature=0.0), None, reuse):
            took, token = time.perf_counter() - began, made.id
        self.prefixes.end("one")
        return took, cached, token


async def measure(kind: str, directory: Path, tokens: int, more: int, rounds: int, threads: int) -> dict[str, Any]:
    """One model: median seconds of each way, and their shares of the reference."""
    engine = TransformersEngine(directory, kv_blocks=MEMORY_BLOCKS, chunk_tokens=512, threads=threads)
    await engine.start()
    chance, plain, keeping = random.Random(1), Node(engine, False), Node(engine, True)

    def prompt(count: int) -> list[int]:
        return [chance.randrange(256) for _ in range(count)]

    seconds: dict[str, list[float]] = {"nothing kept": [], "fresh": [], "again": [], "turn": []}
    hits: dict[str, int] = {}
    equal = True
    await plain.first_token_s(prompt(600))  # the first run of all is not measured
    for _ in range(rounds):
        seen = prompt(tokens)
        took, _, expected = await plain.first_token_s(seen)
        seconds["nothing kept"].append(took)
        for way, asked in (("fresh", seen), ("again", seen), ("turn", [*seen, *prompt(more)])):
            took, hits[way], token = await keeping.first_token_s(asked)
            seconds[way].append(took)
            equal = equal and (asked is not seen or token == expected)
    await engine.close()
    medians = {way: statistics.median(some) for way, some in seconds.items()}
    reference = medians["nothing kept"]
    return {
        "model": kind,
        "seconds": {way: round(value, 4) for way, value in medians.items()},
        "ratio": {way: round(value / reference, 4) for way, value in medians.items()},
        "cached_tokens": hits,
        "same_first_tokens": equal,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--more", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help=f"write {RESULT.name} under docs/benchmarks")
    asked = parser.parse_args()
    found = []
    with tempfile.TemporaryDirectory() as home:
        for kind in KINDS:
            directory = build_tiny(kind, Path(home) / kind)
            work = measure(kind, directory, asked.tokens, asked.more, asked.rounds, asked.threads)
            found.append(asyncio.run(work))
            print(json.dumps(found[-1]), flush=True)
    if asked.json:
        shape = {name: getattr(asked, name) for name in ("tokens", "more", "rounds", "threads")}
        RESULT.write_text(json.dumps({**shape, "models": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
