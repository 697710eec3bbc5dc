"""docs/cache.md: its tables are what the benchmarks found."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"


def test_the_tables_are_the_benchmarks() -> None:
    page = (DOCS / "cache.md").read_text()
    found = json.loads((DOCS / "benchmarks/snapshots.json").read_text())
    for trace in found["traces"]:
        assert f"{trace['boundless_share'] * 100:.1f} %" in page
        for way, points in trace["ways"].items():
            shares = [f"{point['share']:.3f}" for point in points]
            assert f"| {way} | {' | '.join(shares)} |" in page
    for row in json.loads((DOCS / "benchmarks/pool.json").read_text())["cost"]:
        cells = [row[name] for name in ("prompts", "model", "us_a_request", "plain_us_a_request", "ratio")]
        assert f"| {' | '.join(map(str, cells))} |" in page
    for model in json.loads((DOCS / "benchmarks/reuse.json").read_text())["models"]:
        cells = [model["model"], *(model["ratio"][way] for way in ("fresh", "again", "turn"))]
        assert f"| {' | '.join(map(str, cells))} |" in page
    for run in json.loads((DOCS / "benchmarks/increment.json").read_text())["runs"]:
        assert run["same_answers"] == run["requests"]
        for name in ("kv_bytes", "received_tokens", "prefilled_tokens"):
            with_caches, without = run["with_caches"][name], run["without"][name]
            assert round(with_caches / without, 4) == run["ratio"][name] < 1
            assert f"{with_caches:,} of {without:,}" in page
        for name, value in run["ratio"].items():
            assert str(value) in page, name


def test_the_table_of_two_tiers_is_the_benchmark() -> None:
    page = (DOCS / "cache.md").read_text()
    for trace in json.loads((DOCS / "benchmarks/tiers.json").read_text())["traces"]:
        for way, points in trace["ways"].items():
            shares = [f"{point['share']:.3f}" for point in points]
            row = f"| {way} | {' | '.join(shares)} |"
            if "host_blocks" in points[0]:
                moved = [
                    " / ".join(f"{point[name] / trace['requests']:.1f}" for name in ("saved_blocks", "fetched_blocks"))
                    for point in points
                ]
                row += f"\n| out / back | {' | '.join(moved)} |"
            assert row in page


def test_ours_is_at_least_any_naive_choice() -> None:
    """By the file, which whoever runs the benchmark again may commit."""
    for trace in json.loads((DOCS / "benchmarks/snapshots.json").read_text())["traces"]:
        ways = {way: [point["share"] for point in points] for way, points in trace["ways"].items()}
        for naive in ("every block", "only the end"):
            for best, other in zip(ways["ours"], ways[naive], strict=True):
                assert best >= other - 0.001
