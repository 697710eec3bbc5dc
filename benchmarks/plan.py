"""How long a plan computes: the contract is 0.2 s for the paper's optimum and 5 s for 10,000 GPUs with 8 PrfaaS
clusters.

Beside each, the same answer by trying every threshold and every whole number of prefill nodes; the answers must be
equal, and the ratio of the times is what the search is worth. Tables (profile and KV layout over length) are counted,
imports are not. For the large plan everything that `prfaas plan` computes is timed too: all designs by both kinds of
formulas, bound, break-even, sensitivity. Seconds are of this process's own computing, so that a busy machine does not
count; the least of some rounds.

python -m benchmarks.plan [--rounds 5] [--skip-brute] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from prfaas.core.throughput.search import Search
from prfaas.core.throughput.site import Site
from prfaas.core.throughput.split import Formulas, Splits
from prfaas.plan.inputs import Inputs, read_inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planreader import read_plan
from prfaas.plan.report import report

PAPER = Path(__file__).parents[1] / "examples" / "paper.yaml"
LARGE = """
model: paper-1t
traffic:
  lengths: {kind: lognormal, mu: 9.90, sigma: 1.00, least: 128, most: 131072}
  output: 1024
clusters:
  a: {kind: prfaas, profile: paper-h200, nodes: 90}
  b: {kind: prfaas, profile: paper-h200, nodes: 70}
  c: {kind: prfaas, profile: paper-h200, nodes: 60}
  d: {kind: prfaas, profile: paper-h200, nodes: 50}
  e: {kind: prfaas, profile: paper-h20, nodes: 50}
  f: {kind: prfaas, profile: paper-h200, nodes: 40}
  g: {kind: prfaas, profile: paper-h200, nodes: 40}
  h: {kind: prfaas, profile: paper-h20, nodes: 30}
  home: {kind: pd, profile: paper-h20, nodes: 820, decode_batch: 20}
links:
  - {from: a, to: home, bandwidth: 400Gbps}
  - {from: b, to: home, bandwidth: 200Gbps}
  - {from: c, to: home, bandwidth: 100Gbps}
  - {from: d, to: home, bandwidth: 100Gbps}
  - {from: e, to: home, bandwidth: 50Gbps}
  - {from: f, to: home, bandwidth: 50Gbps}
  - {from: g, to: home, bandwidth: 20Gbps}
  - {from: h, to: home, bandwidth: 10Gbps}
"""
"""1,250 nodes of 8."""


def optimum(inputs: Inputs, formulas: Formulas) -> float:
    """Tables, splits and the best shape; its rate."""
    site = inputs.site()
    return Search(site, Splits(site, formulas)).best().rate


def brute(site: Site, formulas: Formulas) -> float:
    """The best rate over every threshold and every number of prefill nodes, by equations 3 to 6."""
    splits = Splits(site, formulas)
    search, (home,), best = Search(site, splits), site.homes, 0.0
    for cut in range(len(splits)):
        split, away = splits.at(cut), search.away.rate(cut)
        cost = (1 - split.p) * split.short_s[0]
        for n_p in range(home.nodes):
            rate = min(away, n_p / cost if cost else inf, (home.nodes - n_p) * home.decode_rate)
            best = max(best, rate)
    return best


def timed(work: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Least seconds of some rounds, and what came out."""
    least, found = inf, 0.0
    for _ in range(rounds):
        began = time.process_time()
        found = work()
        least = min(least, time.process_time() - began)
    return least, found


def whole(inputs: Inputs) -> float:
    """Everything that the command computes and says."""
    plan = Plan(inputs)
    report(plan, plan.paper)
    return plan.exact.prfaas.rate


def read(text: str) -> Inputs:
    with TemporaryDirectory() as directory:
        path = Path(directory) / "plan.yaml"
        path.write_text(text)
        return read_inputs(*read_plan(path))


def measured(rounds: int, with_brute: bool) -> list[dict[str, Any]]:
    paper, large = read(PAPER.read_text()), read(LARGE)
    rows: list[dict[str, Any]] = []

    def add(name: str, contract: float | None, work: Callable[[], float], slow: Callable[[], float] | None) -> None:
        seconds, rate = timed(work, rounds)
        row: dict[str, Any] = {"what": name, "seconds": round(seconds, 4), "contract_s": contract, "lambda_max": rate}
        if slow is not None and with_brute:
            row["brute_s"], same = timed(slow, 1)
            assert abs(rate / same - 1) < 1e-6, (name, rate, same)
            row["ratio"] = row["brute_s"] / seconds
        rows.append(row)

    add("the paper's optimum, its formulas", 0.2, lambda: optimum(paper, "paper"), lambda: brute(paper.site(), "paper"))
    add("the paper's optimum, exact", 0.2, lambda: optimum(paper, "exact"), lambda: brute(paper.site(), "exact"))
    add("the paper's plan, all of it", None, lambda: whole(paper), None)
    add("10,000 GPUs, optimum, exact", 5.0, lambda: optimum(large, "exact"), lambda: brute(large.site(), "exact"))
    add("10,000 GPUs, the plan, all of it", 5.0, lambda: whole(replace(large)), None)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--skip-brute", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = measured(asked.rounds, not asked.skip_brute)
    print(f"{'':36}{'seconds':>9}{'contract':>10}{'brute':>9}{'ratio':>8}{'req/s':>10}")
    for row in rows:
        contract = "-" if row["contract_s"] is None else f"{row['contract_s']:g}"
        tried, ratio = (f"{row['brute_s']:.2f}", f"{row['ratio']:.0f}x") if "ratio" in row else ("-", "-")
        print(f"{row['what']:36}{row['seconds']:>9.3f}{contract:>10}{tried:>9}{ratio:>8}{row['lambda_max']:>10.3f}")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
