"""What one decision of the live gateway costs, beside the threshold rule that decided before.

A router of one PD cluster and three PrfaaS clusters, each with work that waits: jobs of others, from reports, and of
its own. A request arrives, is placed by the policy, and its client leaves; both are timed together. The same is timed
with a request of one token, which no policy is asked about, and taken off: what is left is the decision, with what it
leaves in the backlogs. Rules take turns, so that the machine's moods are shared; medians are reported, and their ratio
to `rule alone`: `choose_source` on the same view, which is all that decided before, and kept no backlogs.

    python -m benchmarks.decide [--waiting 64] [--rounds 2000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from time import perf_counter_ns

from prfaas.core.ids import ClusterName, LinkName, NodeName, RequestId, TransferId
from prfaas.core.routing.catalog import NAMES
from prfaas.core.routing.curve import Curve
from prfaas.core.routing.effects import Decided
from prfaas.core.routing.events import Arrived, ClientGone, CreditGranted, PrefillBound
from prfaas.core.routing.placement import choose_source
from prfaas.core.routing.router import Router, RouterPolicy
from prfaas.core.routing.threshold import Threshold
from prfaas.core.routing.view import DecodeSeen, JobSeen, Source, SourceSeen

HOME = ClusterName("home")
AWAY = tuple(ClusterName(f"far-{n}") for n in range(3))
NODES, OWN = 8, 8
MS = 1_000_000
LONG, SHORT, THRESHOLD = 40_000, 4000, 20_000
CURVE = Curve([(1, MS), (1000, 90 * MS), (32_000, 1840 * MS), (128_000, 7400 * MS)])
DEADLINE_NS = 10**18
BEFORE = "rule alone"


def router(kind: str, waiting: int, known: bool) -> Router:
    """Every queue has `waiting` jobs, every node a prefill; `known`: with prefill times and bytes."""
    sources = [Source(name, LinkName(f"{name}->home"), False, 100 * 10**9, 20 * MS) for name in AWAY]
    sources.append(Source(HOME, LinkName("home->home"), True))
    made = Router(HOME, tuple(sources), RouterPolicy(Threshold(THRESHOLD), 1 << 20, 3, kind))
    for n in range(4):
        made.handle(0, DecodeSeen(NodeName(f"d{n}"), True, 0, 1 << 20))
    for cluster in (*AWAY, HOME):
        made.handle(0, report(cluster, 0, known))
    for cluster, length in ((AWAY[0], LONG), (HOME, SHORT)):
        for n in range(OWN):
            request = RequestId(f"{cluster}-{n}")
            made.handle(0, Arrived(request, length + n, DEADLINE_NS))
            made.handle(0, CreditGranted(request, 1, "d0", 10**6 + 20_000 * (length + n) if known else 0))
            if n % 2:
                made.handle(0, PrefillBound(request, 1, "p"))
    for cluster in (*AWAY, HOME):
        made.handle(1, report(cluster, waiting, known))
    made.validate()
    return made


def report(cluster: ClusterName, waiting: int, known: bool) -> SourceSeen:
    """So many wait, and a prefill on each node."""
    queue = tuple(JobSeen(TransferId(f"x{n}.1"), 1000 * (1 + n % 60), n * MS) for n in range(waiting))
    busy = tuple(JobSeen(TransferId(f"y{n}.1"), 30_000, n * MS) for n in range(NODES))
    return SourceSeen(cluster, NODES, waiting, NODES, 1 << 20, queue=queue, busy=busy, curve=CURVE if known else None)


def timed(made: Router, tokens: int, name: str) -> int:
    """Nanoseconds from arrival to the client's leaving."""
    request = RequestId(name)
    arrived, gone = Arrived(request, tokens, DEADLINE_NS), ClientGone(request)
    began = perf_counter_ns()
    effects = made.handle(2, arrived)
    made.handle(3, gone)
    took = perf_counter_ns() - began
    assert any(isinstance(effect, Decided) for effect in effects)
    return took


def measured(waiting: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds of a decision, by rule."""
    rules = {"threshold, nothing known": router("threshold", waiting, known=False)}
    rules |= {kind: router(kind, waiting, known=True) for kind in NAMES}
    rules["ours, nothing known"] = router("ours", waiting, known=False)
    took: dict[str, list[list[int]]] = {name: [[], [], []] for name in rules}
    for at in range(rounds):
        for name, made in rules.items():
            for which, tokens in enumerate((1, SHORT, LONG)):
                took[name][which].append(timed(made, tokens + at % 7 if which else 1, f"r{at}"))
    alone = router("threshold", waiting, known=False).view
    rule: list[list[int]] = [[], []]
    for at in range(rounds):
        for which, tokens in enumerate((SHORT, LONG)):
            began = perf_counter_ns()
            choose_source(alone, Threshold(THRESHOLD), tokens + at % 7, frozenset(), "")
            rule[which].append(perf_counter_ns() - began)
    found = {BEFORE: {"short_us": median(rule[0]) / 1e3, "long_us": median(rule[1]) / 1e3, "besides_us": 0.0}}
    for name, (none, short, long) in took.items():
        base = median(none)
        found[name] = {
            "short_us": (median(short) - base) / 1e3,
            "long_us": (median(long) - base) / 1e3,
            "besides_us": base / 1e3,
        }
    return found


def lines(found: dict[str, dict[str, float]]) -> Iterator[str]:
    """As a table, ratios to the rule before."""
    before = found[BEFORE]
    yield f"{'rule':24} {'short, us':>10} {'ratio':>7} {'long, us':>10} {'ratio':>7}"
    for name, one in found.items():
        ratios = [one[key] / before[key] for key in ("short_us", "long_us")]
        yield f"{name:24} {one['short_us']:10.1f} {ratios[0]:7.1f} {one['long_us']:10.1f} {ratios[1]:7.1f}"


def main(argv: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--waiting", type=int, default=64, help="jobs that wait at each of the four clusters")
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--json", type=Path)
    said = parser.parse_args(argv)
    found = measured(said.waiting, said.rounds)
    print("\n".join(lines(found)))
    if said.json is not None:
        whole = {"clusters": 1 + len(AWAY), "waiting": said.waiting, "rounds": said.rounds, "rules": found}
        said.json.write_text(json.dumps(whole, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
