"""Cost of a prefix pool's decisions for one request, against a plain dictionary walk with an LRU list in the same run.

A request has 200 blocks, of which 190 are stored: one match (`usable`), one `begin`, one `end`, in a full pool, so that
each request also evicts what it brings. *branching*: prompts that go on differently from a few long prefixes;
*growing*: conversations that grow by 10 blocks a turn and begin again at 300 (200 in the mean). The reference walks the
chain block by block and keeps an `OrderedDict` of blocks in order of use: no snapshots, pins, sharing or books.
Times are of the processor, best of `--repeat`. Then a long run: memory and nodes must not grow.

    PYTHONPATH=src python benchmarks/pool.py [--requests 20000] [--repeat 3] [--long 300000] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec

BLOCK = 512
CAPACITY = 16_384
MODELS = {"attention": PoolSpec(BLOCK), "hybrid": PoolSpec(BLOCK, 21)}


def branching(count: int) -> Iterator[list[int]]:
    """32 prefixes of 190 blocks, each prompt with 10 blocks of its own."""
    chance = random.Random(1)
    fresh = iter(range(1, 1 << 62))
    prefixes = [[next(fresh) for _ in range(190)] for _ in range(32)]
    for _ in range(count):
        yield chance.choice(prefixes) + [next(fresh) for _ in range(10)]


def growing(count: int) -> Iterator[list[int]]:
    """32 conversations from 100 blocks to 300."""
    chance = random.Random(1)
    fresh = iter(range(1, 1 << 62))
    chains = [[next(fresh) for _ in range(100 + 10 * chance.randrange(20))] for _ in range(32)]
    for _ in range(count):
        at = chance.randrange(32)
        if len(chains[at]) >= 300:
            chains[at] = [next(fresh) for _ in range(100)]
        chains[at] = chains[at] + [next(fresh) for _ in range(10)]
        yield chains[at]


SHAPES = {"branching": branching, "growing": growing}


def serve(spec: PoolSpec, prompts: list[list[int]]) -> tuple[float, PrefixPool]:
    """Processor seconds of `prompts` through a pool."""
    pool, placement = PrefixPool(spec, CAPACITY), Placement()
    start = time.process_time()
    for request, chain in enumerate(prompts):
        tokens = len(chain) * BLOCK + 100
        pool.usable(chain, tokens)
        grant = pool.begin(request, chain, tokens)
        assert grant is not None
        pool.end(request, chain, tokens, *placement.lengths(spec, grant, tokens, tokens))
    return time.process_time() - start, pool


def serve_plainly(prompts: list[list[int]]) -> tuple[float, int]:
    """The same with a dictionary of blocks in order of use: processor seconds, blocks that hit."""
    order: OrderedDict[int, None] = OrderedDict()
    hits = 0
    start = time.process_time()
    for chain in prompts:
        hit = 0
        for block in chain:
            if block not in order:
                break
            hit += 1
        hits += hit
        while len(order) > CAPACITY - (len(chain) + 1 - hit):
            order.popitem(last=False)
        for block in reversed(chain):
            order[block] = None
            order.move_to_end(block)
    return time.process_time() - start, hits


def resident_bytes() -> int:
    """Memory of this process, or 0 where the system does not say."""
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * 4096 if status.exists() else 0


def endure(count: int) -> list[dict[str, int]]:
    """Memory and nodes at ten points of a long run, hybrid and growing, prompts made as they are needed."""
    spec = MODELS["hybrid"]
    pool, placement = PrefixPool(spec, CAPACITY), Placement()
    points = []
    for request, chain in enumerate(growing(count), 1):
        tokens = len(chain) * BLOCK + 100
        grant = pool.begin(request, chain, tokens)
        assert grant is not None
        pool.end(request, chain, tokens, *placement.lengths(spec, grant, tokens, tokens))
        if request % max(1, count // 10) == 0:
            points.append({"requests": request, "resident_bytes": resident_bytes(), "nodes": pool.nodes})
    pool.validate()
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--long", type=int, default=300_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for shape, make in SHAPES.items():
        prompts = list(make(options.requests))
        plain_s = min(serve_plainly(prompts)[0] for _ in range(options.repeat))
        for model, spec in MODELS.items():
            runs = [serve(spec, prompts) for _ in range(options.repeat)]
            pool = runs[0][1]
            cost_s = min(seconds for seconds, _ in runs)
            rows.append(
                {
                    "prompts": shape,
                    "model": model,
                    "us_a_request": round(cost_s / options.requests * 1e6, 2),
                    "plain_us_a_request": round(plain_s / options.requests * 1e6, 2),
                    "ratio": round(cost_s / plain_s, 3),
                    "hit_share": round(pool.hit_tokens / pool.asked_tokens, 4),
                    "evicted_blocks": pool.evicted_blocks,
                }
            )
    points = endure(options.long) if options.long else []
    if options.json:
        print(
            json.dumps({"block_tokens": BLOCK, "capacity_blocks": CAPACITY, "cost": rows, "long_run": points}, indent=2)
        )
        return
    for row in rows:
        print(
            f"{row['prompts']:10} {row['model']:10} {row['us_a_request']:6} us a request, "
            f"plain walk with LRU {row['plain_us_a_request']} us: ratio {row['ratio']}; hits {row['hit_share']:.1%}"
        )
    for point in points:
        memory = point["resident_bytes"] / 2**20
        print(f"after {point['requests']:9,} requests: {memory:.1f} MiB, {point['nodes']:,} nodes")


if __name__ == "__main__":
    main()
