"""What a host tier adds to a cache of accelerator memory: share of a boundless cache's savings, and blocks moved.

Traces in Mooncake's format go through the pool, one request after another, and every move is made at once. Beside each
size of the accelerator tier: with hosts of so many times its size, and one pool as large as both together. 1 is a cache
without bound that resumes at every block.

    PYTHONPATH=src python benchmarks/tiers.py TRACE... [--model paper-1t] [--blocks 4096 ...] [--hosts 1 4]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.cache.tiers import TieredPool
from prfaas.core.errors import LocalError
from prfaas.model.hf.load import load_layout
from prfaas.plan.trace import read_trace

BLOCK = 512
BOUNDLESS = 1 << 50
SNAPSHOTS = 3
Request = tuple[tuple[int, ...], int]


def one_tier(requests: Sequence[Request], spec: PoolSpec, blocks: int) -> dict[str, Any]:
    """What one pool of `blocks` blocks does."""
    pool, place = PrefixPool(spec, blocks), Placement()
    start = time.process_time()
    for number, (chain, tokens) in enumerate(requests):
        grant = pool.begin(number, chain, tokens)
        if grant is not None:  # else it is larger than the pool
            pool.end(number, chain, tokens, *place.lengths(spec, grant, tokens, tokens))
    return {"blocks": blocks, "hit_tokens": pool.hit_tokens, "us_a_request": _us(start, requests)}


def two_tiers(requests: Sequence[Request], spec: PoolSpec, blocks: int, host: int) -> dict[str, Any]:
    """What an accelerator of `blocks` and a host of `host` blocks do."""
    pool, place = TieredPool(spec, blocks, host), Placement()
    start = time.process_time()
    for number, (chain, tokens) in enumerate(requests):
        grant = pool.begin(number, chain, tokens, snapshots=SNAPSHOTS)
        _make(pool)
        if grant is not None:
            pool.end(number, chain, tokens, *place.lengths(spec, grant, tokens, tokens))
            _make(pool)
    return {
        "blocks": blocks,
        "host_blocks": host,
        "hit_tokens": pool.near_tokens + pool.host_tokens,
        "host_tokens": pool.host_tokens,
        "saved_blocks": pool.saved_blocks,
        "fetched_blocks": pool.fetched_blocks,
        "us_a_request": _us(start, requests),
    }


def _make(pool: TieredPool) -> None:
    while moves := pool.take_moves():
        for move in moves:
            pool.moved(move.number)


def _us(start: float, requests: Sequence[Request]) -> float:
    return round((time.process_time() - start) / max(1, len(requests)) * 1e6, 1)


def measure(file: Path, spec: PoolSpec, sizes: Sequence[int], hosts: Sequence[int]) -> dict[str, Any]:
    """All on one trace."""
    requests = [(row.hash_ids[: row.input_length // BLOCK], row.input_length) for row in read_trace(file)]
    boundless = one_tier(requests, PoolSpec(spec.block_tokens), BOUNDLESS)["hit_tokens"]
    ways: dict[str, list[dict[str, Any]]] = {"accelerator": [one_tier(requests, spec, n) for n in sizes]}
    for times in hosts:
        ways[f"host {times}x"] = [two_tiers(requests, spec, n, n * times) for n in sizes]
        ways[f"one pool {times + 1}x"] = [one_tier(requests, spec, n * (times + 1)) for n in sizes]
    for points in ways.values():
        for point in points:
            point["share"] = round(point["hit_tokens"] / max(1, boundless), 4)
    return {"trace": file.name.partition(".")[0], "requests": len(requests), "ways": ways}


def table(found: dict[str, Any]) -> list[str]:
    """Rows as Markdown: shares by size; of hosts also the share that came from there, and blocks out and back a
    request."""
    rows = []
    for way, points in found["ways"].items():
        shares = [f"{point['share']:.3f}" for point in points]
        rows.append(f"| {way} | {' | '.join(shares)} |")
        if "host_blocks" in points[0]:
            moved = [
                f"{point['saved_blocks'] / found['requests']:.1f} / {point['fetched_blocks'] / found['requests']:.1f}"
                for point in points
            ]
            rows.append(f"| out / back | {' | '.join(moved)} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--model", default="paper-1t")
    parser.add_argument("--blocks", nargs="+", type=int, default=[4096 << step for step in range(5)])
    parser.add_argument("--hosts", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not options.traces:
        print("no trace given: nothing to measure; expected traces in Mooncake's format, .jsonl or .jsonl.gz")
        return
    try:
        layout = load_layout(options.model)
        spec = PoolSpec.of_layout(layout, BLOCK)
        traces = [measure(file, spec, options.blocks, options.hosts) for file in options.traces]
    except LocalError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    size = block_bytes(layout, BLOCK)
    report = {"model": options.model, "block_tokens": BLOCK, "block_bytes": size, "traces": traces}
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for found in traces:
        gib = [f"{n * size / 2**30:,.0f} GiB" for n in options.blocks]
        print(f"\n| {found['trace']} | {' | '.join(gib)} |")
        print("|---" * (len(gib) + 1) + "|")
        print("\n".join(table(found)))


if __name__ == "__main__":
    main()
