"""Share of the tokens that a boundless cache saves which a pool saves, by its size and by where snapshots are taken.

Traces in Mooncake's format go through one pool, one request after another: begin, end, next. 1 is a cache without bound
that resumes at every block. The pool is that of a model with recurrent state (`--model`), whose snapshot weighs many
blocks; *no state* is the same pool for a model that resumes at every block, so what is left to gain.

    PYTHONPATH=src python benchmarks/snapshots.py TRACE... [--model paper-1t] [--blocks 4096 ...]
        [--json FILE] [--chart FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.errors import LocalError
from prfaas.model.hf.load import load_layout
from prfaas.plan.trace import read_trace

BLOCK = 512
BOUNDLESS = 1 << 50
Request = tuple[list[int], int]
Place = Callable[[PoolSpec, Grant, Request], tuple[list[int], list[int]]]


def every_block(spec: PoolSpec, grant: Grant, request: Request) -> tuple[list[int], list[int]]:
    every = spec.snapshot_tokens
    return list(range(request[1] - request[1] % every, grant.cached_tokens, -every)), []


def only_the_end(spec: PoolSpec, grant: Grant, request: Request) -> tuple[list[int], list[int]]:
    return [request[1] - request[1] % spec.snapshot_tokens], []


def end_and_branch(spec: PoolSpec, grant: Grant, request: Request) -> tuple[list[int], list[int]]:
    return Placement(spare=0, worth=0).lengths(spec, grant, request[1], request[1])


def ours(spec: PoolSpec, grant: Grant, request: Request) -> tuple[list[int], list[int]]:
    return Placement().lengths(spec, grant, request[1], request[1])


OURS = "ours"
WAYS: dict[str, tuple[Place, bool]] = {
    "every block": (every_block, False),
    "only the end": (only_the_end, False),
    "end, branches": (end_and_branch, False),
    OURS: (ours, True),
}
"""Where snapshots are taken, and whether the one that a request went on from gives way."""
STATELESS = "no state"


def saved(requests: Sequence[Request], spec: PoolSpec, blocks: int, place: Place, supersede: bool) -> dict[str, Any]:
    """What a pool of `blocks` blocks does for `requests`."""
    pool = PrefixPool(spec, blocks, supersede=supersede)
    start = time.process_time()
    for number, request in enumerate(requests):
        chain, tokens = request
        grant = pool.begin(number, chain, tokens)
        if grant is not None:  # else it is larger than the pool
            pool.end(number, chain, tokens, *place(spec, grant, request))
    return {
        "blocks": blocks,
        "hit_tokens": pool.hit_tokens,
        "evicted_blocks": pool.evicted_blocks,
        "too_large": pool.refused,
        "us_a_request": round((time.process_time() - start) / len(requests) * 1e6, 1),
    }


def measure(file: Path, spec: PoolSpec, sizes: Sequence[int]) -> dict[str, Any]:
    """All ways at all sizes on one trace."""
    rows = list(read_trace(file))
    requests = [(list(row.hash_ids[: row.input_length // BLOCK]), row.input_length) for row in rows]
    asked = sum(tokens for _, tokens in requests)
    stateless = PoolSpec(spec.block_tokens)
    boundless = saved(requests, stateless, BOUNDLESS, only_the_end, False)["hit_tokens"]
    ways: dict[str, list[dict[str, Any]]] = {
        STATELESS: [saved(requests, stateless, n, only_the_end, False) for n in sizes]
    }
    for way, (place, supersede) in WAYS.items():
        ways[way] = [saved(requests, spec, n, place, supersede) for n in sizes]
    for points in ways.values():
        for point in points:
            point["share"] = round(point["hit_tokens"] / max(1, boundless), 4)
    name = file.name.partition(".")[0]
    return {"trace": name, "requests": len(rows), "boundless_share": round(boundless / asked, 4), "ways": ways}


def show(report: dict[str, Any]) -> None:
    """Tables, as Markdown."""
    for found in report["traces"]:
        boundless = f"boundless: {found['boundless_share']:.1%} of all tokens"
        print(f"\n{found['trace']}: {found['requests']:,} requests; {boundless}\n")
        gib = [f"{n:,} ({n * report['block_bytes'] / 2**30:,.0f} GiB)" for n in report["blocks"]]
        print(f"| blocks | {' | '.join(gib)} |")
        print("|---" * (len(gib) + 1) + "|")
        for way, points in found["ways"].items():
            shares = [f"{point['share']:.3f}" for point in points]
            print(f"| {way} | {' | '.join(shares)} |")


def chart(report: dict[str, Any], file: Path) -> None:
    """Share by size, one panel a trace."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    traces = report["traces"]
    figure, axes = pyplot.subplots(1, len(traces), figsize=(5.2 * len(traces), 4), layout="constrained", squeeze=False)
    gib = [n * report["block_bytes"] / 2**30 for n in report["blocks"]]
    colours = {STATELESS: "#94a3b8", "every block": "#c2410c", "only the end": "#ca8a04", "end, branches": "#15803d"}
    for axis, found in zip(axes[0], traces, strict=True):
        for way, points in found["ways"].items():
            style = {"color": colours.get(way, "#1d4ed8"), "linewidth": 2.4 if way == OURS else 1.4}
            dashes = "--" if way == STATELESS else "-"
            axis.plot(gib, [point["share"] for point in points], dashes, marker=".", label=way, **style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(gib, [f"{size:,.0f}" for size in gib])
        axis.set(title=f"{found['trace']} ({found['requests']:,} requests)", xlabel="pool, GiB", ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("tokens saved / a boundless cache's")
    axes[0][-1].legend(loc="lower right", frameon=False)
    figure.suptitle(f"{report['model']}: a snapshot weighs {report['snapshot_blocks']} blocks of {BLOCK} tokens")
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--model", default="paper-1t")
    parser.add_argument("--blocks", nargs="+", type=int, default=[4096 << step for step in range(7)])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    if not options.traces:
        print("no trace given: nothing to measure; expected traces in Mooncake's format, .jsonl or .jsonl.gz")
        return
    try:
        layout = load_layout(options.model)
        spec = PoolSpec.of_layout(layout, BLOCK)
        traces = [measure(file, spec, options.blocks) for file in options.traces]
    except LocalError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    report = {
        "model": options.model,
        "block_tokens": BLOCK,
        "block_bytes": block_bytes(layout, BLOCK),
        "snapshot_blocks": spec.snapshot_blocks,
        "blocks": options.blocks,
        "traces": traces,
    }
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.chart:
        chart(report, options.chart)
    show(report)


if __name__ == "__main__":
    main()
