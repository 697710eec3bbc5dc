"""Bytes that cross a link and tokens that are prefilled, with prefix caches at both ends and without any.

Real processes (`prfaas up`), two clusters: every prompt is prefilled far away and decoded at home, one request after
another. A *conversation* of ten turns on a real tiny hybrid model (`tiny-hybrid`: Kimi Linear, random weights), and a
*replay* of the first requests of a trace in Mooncake's format (a path; agentic traffic is meant) on emulated nodes with
the paper's 1T layout. Lengths of the trace are divided by `--divide`, bytes by `--bytes-scale`; equal ids of the trace
are equal tokens. What crosses is what the decode node's transport counted, every chunk that came; what is prefilled is
what the prefill node's counters say. `prefix_cache: false` is the reference, in the same run. Answers must be equal.

The state at the end of a prompt crosses always, and does not shrink with `--divide`: then its share is as many times
larger than it would be. `kv_bytes_undivided` is computed from what was measured: rows times `--divide`, states as is.

*Least* is what would cross if the decode node held all rows that it ever received, in whole blocks of 64 tokens.

    python -m benchmarks.increment [--trace FILE] [--requests 300] [--divide 8] [--bytes-scale 0.00390625] [--turns 10]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
from tests.e2e.system import System, until

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.transfer.extent import extent_bytes, needed
from prfaas.engine.emulated.layouts import layout_of
from prfaas.plan.trace import Row, read_trace

TRACE_BLOCK = 512
BLOCK = 64
LAYOUT = "paper-1t"
HYBRID = "tiny-hybrid"
Prompt = str | list[int]


@dataclass(slots=True)
class Counted:
    """What a run did: of the decode node bytes that crossed and tokens that did, and did not have to; of the prefill
    node tokens that were computed."""

    kv_bytes: int = 0
    received_tokens: int = 0
    held_tokens: int = 0
    prefilled_tokens: int = 0


def topology(engine: str, keeps: bool, model: str) -> str:
    """Two clusters; whatever is longer than one token is prefilled far away."""
    node = f"{{{engine}, prefix_cache: {str(keeps).lower()}}}"
    return f"""
model: {model}
clusters:
  home:
    kind: pd
    nodes:
      - {{name: home-decode, role: decode, engine: {node}}}
      - {{name: home-prefill, role: prefill, engine: {node}}}
  far:
    kind: prfaas
    nodes:
      - {{name: far-prefill, role: prefill, engine: {node}}}
links:
  - {{from: far, to: home, bandwidth: 10Gbps, rtt: 1ms}}
policy: {{kind: threshold, threshold: 1}}
"""


def counted(system: System) -> Counted:
    """All since the start. The prefill node counts a prompt a little after it was answered."""

    def tokens(node: str, *sources: str) -> int:
        return sum(int(system.metric(node, "prfaas_prompt_tokens_total", source=source)) for source in sources)

    until(
        "both ends have counted",
        lambda: tokens("far-prefill", "computed", "cached") == tokens("home-decode", "received", "held"),
    )
    return Counted(
        int(system.metric("home-decode", "prfaas_kv_bytes_total")),
        tokens("home-decode", "received"),
        tokens("home-decode", "held"),
        tokens("far-prefill", "computed"),
    )


def ask(system: System, prompt: Prompt, max_tokens: int) -> str:
    """The greedy answer, which must have come from far away."""
    body = {"model": system.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    answer = httpx2.post(system.url + "/v1/completions", json=body, timeout=300)
    if answer.status_code != 200 or not answer.headers["x-prfaas-route"].startswith("remote"):
        raise SystemExit(f"{answer.status_code} {answer.headers.get('x-prfaas-route')}: {answer.text[:300]}")
    return str(answer.json()["choices"][0]["text"])


def run(
    file: str, model: str | None, work: Callable[[System], Iterator[str]]
) -> tuple[list[str], list[Counted], float]:
    """Answers of `work`, what was counted after each, and seconds."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "topology.yaml"
        path.write_text(file)
        system = System.start(path, Path(directory), model)
        try:
            began, texts, counts = time.monotonic(), [], []
            for text in work(system):
                texts.append(text)
                counts.append(counted(system))
            took = time.monotonic() - began
            system.settled()
            return texts, counts, took
        finally:
            system.stop()


def both(name: str, engine: str, model: str | None, work: Callable[[System], Iterator[str]]) -> dict[str, Any]:
    """With caches and without: totals, and the ratios."""
    found = {}
    for keeps in (True, False):
        print(f"{name}, {'with' if keeps else 'without'} prefix caches ...", flush=True)
        found[keeps] = run(topology(engine, keeps, model or "emulated"), model, work)
    (texts, counts, took), (plain, reference, plain_took) = found[True], found[False]
    ours, theirs = counts[-1], reference[-1]
    return {
        "name": name,
        "requests": len(texts),
        "with_caches": asdict(ours),
        "without": asdict(theirs),
        "ratio": {
            "kv_bytes": round(ours.kv_bytes / theirs.kv_bytes, 4),
            "received_tokens": round(ours.received_tokens / theirs.received_tokens, 4),
            "prefilled_tokens": round(ours.prefilled_tokens / theirs.prefilled_tokens, 4),
        },
        "same_answers": sum(one == other for one, other in zip(texts, plain, strict=True)),
        "seconds": {"with_caches": round(took, 1), "without": round(plain_took, 1)},
        "by_request": [asdict(one) for one in counts],
        "by_request_without": [asdict(one) for one in reference],
    }


def conversation(turns: int, words: int) -> Callable[[System], Iterator[str]]:
    """A chat: each turn says `words` words, and is answered by 80 tokens."""

    def work(system: System) -> Iterator[str]:
        chance, said = random.Random(1), ""
        for _ in range(turns):
            said += " ".join(chance.choice(("rain", "river", "stone", "light", "seven", "north")) for _ in range(words))
            answer = ask(system, said + "\n", 80)
            said += "\n" + answer
            yield answer

    return work


def tokens_of(row: Row, divide: int) -> list[int]:
    """The prompt: equal ids are equal tokens, printable ones."""
    each = TRACE_BLOCK // divide
    made: list[int] = []
    for block in row.hash_ids:
        made += random.Random(block).choices(range(32, 127), k=each)
    return made[: max(2, row.input_length // divide)]


def replay(rows: Sequence[Row], divide: int) -> Callable[[System], Iterator[str]]:
    """The requests of a trace, in order."""

    def work(system: System) -> Iterator[str]:
        for number, row in enumerate(rows, 1):
            yield ask(system, tokens_of(row, divide), max(1, row.output_length // divide))
            if number % 50 == 0:
                print(f"  {number} of {len(rows)}", flush=True)

    return work


def crossing(layout: KVLayout, length: int, held: int) -> int:
    """Bytes that a receiver needs that holds `held` of `length` tokens."""
    parts = {(part.layer, part.name): part for part in layout.parts}
    return sum(extent_bytes(parts[one.layer, one.part], one) for one in needed(layout, length, held))


def least(rows: Sequence[Row], layout: KVLayout, divide: int) -> dict[str, int]:
    """What would cross if nothing that was received were ever forgotten, but for what is no whole block."""
    seen: set[int] = set()
    found = {"kv_bytes": 0, "received_tokens": 0}
    for row in rows:
        length = max(2, row.input_length // divide) - 1
        blocks = row.hash_ids
        hit = next((at for at, block in enumerate(blocks) if block not in seen), len(blocks))
        held = min(hit * (TRACE_BLOCK // divide), length - 1)
        held -= held % BLOCK
        found["kv_bytes"] += crossing(layout, length, held)
        found["received_tokens"] += length - held
        seen.update(blocks[: length // (TRACE_BLOCK // divide)])
    return found


def more_ratios(found: dict[str, Any]) -> dict[str, float]:
    """Of a replay: the least that is possible, rows alone, and all bytes were lengths not divided (rows that many times
    as many, states as they are)."""
    ours, theirs, fewest, states = found["with_caches"], found["without"], found["least"], found["state_bytes"]
    rows, all_rows = ours["kv_bytes"] - states, theirs["kv_bytes"] - states
    whole, all_whole = (some * found["divide"] + states for some in (rows, all_rows))
    return {
        "least_kv_bytes": round(fewest["kv_bytes"] / theirs["kv_bytes"], 4),
        "least_received_tokens": round(fewest["received_tokens"] / theirs["received_tokens"], 4),
        "row_bytes": round(rows / all_rows, 4),
        "kv_bytes_undivided": round(whole / all_whole, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="a trace in Mooncake's format; left out: no replay")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--divide", type=int, default=8)
    parser.add_argument("--bytes-scale", type=float, default=1 / 256)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--words", type=int, default=50)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if not 1 <= asked.divide <= TRACE_BLOCK // BLOCK:
        parser.error(f"--divide: got {asked.divide}; expected 1 to {TRACE_BLOCK // BLOCK}")
    if asked.turns < 1 or asked.requests < 1:
        parser.error("--turns and --requests are at least 1")
    runs = [
        both("conversation", "kind: transformers, kv_memory: 256MiB", HYBRID, conversation(asked.turns, asked.words))
    ]
    if asked.trace:
        layout = layout_of(LAYOUT, asked.bytes_scale)
        rows = list(islice(read_trace(asked.trace), asked.requests))
        engine = (
            f"kind: emulated, profile: paper-h200, layout: {LAYOUT}, time_scale: 0.0001, "
            f"bytes_scale: {asked.bytes_scale}, kv_memory: 4GiB"
        )
        found = both(f"replay of {asked.trace.name.partition('.')[0]}", engine, None, replay(rows, asked.divide))
        state = sum(part.unit_bytes for part in layout.parts if part.kind is PartKind.STATE) * len(rows)
        found |= {"divide": asked.divide, "bytes_scale": asked.bytes_scale, "state_bytes": state}
        found["least"] = least(rows, layout, asked.divide)
        found["ratio"] |= more_ratios(found)
        del found["by_request"], found["by_request_without"]
        runs.append(found)
    for one in runs:
        print(json.dumps({key: value for key, value in one.items() if not key.startswith("by_")}))
    if asked.json:
        asked.json.write_text(json.dumps({"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
