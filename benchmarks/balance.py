"""How well a cluster's nodes follow a mix that shifts: our balancer, the paper's rule, and the best fixed division.

Three simulated days of the paper's site (4 H200 nodes far away, 8 H20 nodes at home, `paper-h200` and `paper-h20`). Two
kinds of request, long prompts with short answers and the reverse, whose shares shift, so that the best n_p is between 1
and 5. The rules are those of `core/balance`, in its machine: they see requests come and end, and a conversion takes two
minutes, in which the node does nothing. No queues: what is compared is Lambda_max of the division (eq. 6, integrated
over the true mix of that minute) over that of the best division for that minute, changed for free.

Shifting mixes, for which the goals are: `diurnal` (a day's wave with noise), `steps` (another mix every few hours, at
once), `drift` (slowly to another mix, and a rest there). Beyond them: `excursions` (a few times a day another mix, for
20 to 60 minutes, and back) and `link` (diurnal, and the link falls to 12 or 6 of 100 Gbit/s for hours). Rules were
tuned on the first seeds of TUNING only; what is reported is JUDGING.

    python -m benchmarks.balance [--seeds tuning|judging] [--runs 8] [--json FILE] [--chart FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import NormalDist, fmean
from typing import Any

from prfaas.core.balance.balancer import BalancePolicy, Balancer
from prfaas.core.balance.effects import BalanceEffect, Convert, Drain
from prfaas.core.balance.events import BalanceEvent, Converted, Drained, Look, Staffed
from prfaas.core.balance.hardware import Hardware
from prfaas.core.balance.measured import MINUTE_NS, Measured
from prfaas.core.balance.rivals import Ratio
from prfaas.core.balance.rules import Predictive, Rule
from prfaas.core.balance.tuner import TunePolicy, Tuner
from prfaas.core.ids import NodeName
from prfaas.core.machine import Pump
from prfaas.core.throughput.lengths import Lengths, lognormal
from prfaas.core.throughput.search import Search
from prfaas.core.throughput.site import Home, Remote, Site
from prfaas.core.throughput.split import Splits
from prfaas.model.profilefile import load_profile

DAYS, DAY = 3, 24 * 60
WARM_MIN = 30
NODES, REMOTE_NODES, NOMINAL_BPS = 8, 4, 100e9
STATE_BYTES, TOKEN_BYTES = 174 * 2**20, 16.8 * 1024
TOKENS_PER_S = 20 / 0.025
LOAD = 0.7
TUNING, JUDGING = range(100, 200), range(700, 800)
SHIFTING = ("diurnal", "steps", "drift")
PATTERNS = (*SHIFTING, "excursions", "link")
OURS = "predictive"
RULES: dict[str, Callable[[], Rule]] = {
    "ratio": Ratio,
    "ratio, 20 % band": lambda: Ratio(band=0.2),
    "predictive, no drift": lambda: Predictive(margin=0.05, back=0.0, drift=0.0),
    "predictive, back at once": lambda: Predictive(back=0.0),
    OURS: Predictive,
}


@dataclass(frozen=True, slots=True)
class Kind:
    """Log-normal prompts, cut to [128, 128K]; answers of a mean, exponential."""

    mu: float
    sigma: float
    output: float


LONG, SHORT = Kind(10.2, 0.9, 500), Kind(9.3, 1.0, 1700)


@dataclass(frozen=True, slots=True)
class Minute:
    """What is true for a minute: share of LONG in percent, answers longer by `output`, and the link."""

    percent: int
    output: float
    bps: float


# Truth: the planner's equations over the true mix.


def kv_bytes(tokens: float) -> float:
    """Section 3 of the paper's model: state and bytes a token."""
    return STATE_BYTES + TOKEN_BYTES * tokens


@cache
def hardware() -> Hardware:
    """The paper's site. Nothing is cached, so context is what is computed."""
    far, home = load_profile("paper-h200"), load_profile("paper-h20")

    @cache
    def far_s(tokens: int) -> float:
        return far.prefill_ns(tokens, tokens) / 1e9

    @cache
    def home_s(tokens: int) -> float:
        return home.prefill_ns(tokens, tokens) / 1e9

    return Hardware(
        lambda uncached, _: home_s(round(uncached)),
        (lambda uncached, _: far_s(round(uncached)),),
        lambda output, _: output / TOKENS_PER_S,
        kv_bytes,
    )


@cache
def mixed(percent: int) -> Lengths:
    """The true distribution of lengths."""
    one, other = (lognormal(kind.mu, kind.sigma, 128, 131072, 512) for kind in (LONG, SHORT))
    share = percent / 100
    weights = [share * a + (1 - share) * b for a, b in zip(one.weights, other.weights, strict=True)]
    tokens = [
        (share * a * x + (1 - share) * b * y) / w if w > 0 else float(top)
        for a, x, b, y, w, top in zip(
            one.weights, one.tokens, other.weights, other.tokens, weights, one.tops, strict=True
        )
    ]
    return Lengths(one.tops, tuple(tokens), tuple(weights))


@cache
def search(percent: int, bps: float) -> Search:
    lengths, costs = mixed(percent), hardware()
    site = Site(
        lengths,
        lengths.table(kv_bytes),
        (Remote(REMOTE_NODES, lengths.table(lambda x: costs.remotes[0](x, x))),),
        (Home(NODES, lengths.table(lambda x: costs.home(x, x)), 1.0, 1.0, (bps,)),),
    )
    return Search(site, Splits(site, "exact"))


@cache
def prefill(percent: int, bps: float, n_p: int, threshold: int | None) -> float:
    """What all prefill sustains, with this threshold or the best one."""
    found = search(percent, bps)
    cut = None if threshold is None else found.site.lengths.cut(threshold)
    shape = found.with_nodes((n_p,)) if cut is None else found.shape(cut, (n_p,))
    return min(shape.remote, shape.prefill)


def rate(now: Minute, n_p: int, n_d: int, threshold: int | None = None) -> float:
    """Lambda_max."""
    share = now.percent / 100
    output = (share * LONG.output + (1 - share) * SHORT.output) * now.output
    return min(prefill(now.percent, now.bps, n_p, threshold), n_d * TOKENS_PER_S / output)


def best(now: Minute) -> tuple[float, int]:
    """The clairvoyant's rate and n_p."""
    return max((rate(now, n, NODES - n), -n) for n in range(1, NODES))


# Patterns.


def pattern(name: str, seed: int) -> list[Minute]:
    """Three days, minute by minute."""
    chance = random.Random(f"{name} {seed}")
    percents = list(_percents("diurnal" if name == "link" else name, chance))
    outputs = [1 + 0.05 * x for x in _walk(chance, 360)]
    links = list(_links(chance)) if name == "link" else [NOMINAL_BPS] * len(percents)
    return [
        Minute(round(min(max(percent, 10.0), 90.0)), round(output, 2), bps)
        for percent, output, bps in zip(percents, outputs, links, strict=True)
    ]


def _percents(name: str, chance: random.Random) -> Iterator[float]:
    minutes = DAYS * DAY
    if name == "diurnal":
        phase, height, noise = chance.random(), chance.uniform(25, 40), _walk(chance, 120)
        for at in range(minutes):
            yield 50 + height * math.sin(2 * math.pi * (at / DAY + phase)) + 3 * noise[at]
    elif name == "steps":
        left, level = 0.0, 50.0
        for _ in range(minutes):
            if left <= 0:
                left, level = chance.uniform(180, 600), chance.uniform(10, 90)
            left -= 1
            yield level
    elif name == "drift":
        level, to, left = chance.uniform(10, 90), chance.uniform(10, 90), 0.0
        speed = 5 / 60
        for _ in range(minutes):
            if abs(to - level) < speed:
                level, to, left = to, chance.uniform(10, 90), chance.uniform(60, 240)
            left -= 1
            if left <= 0:
                level += speed if to > level else -speed
            yield level
    else:
        base, other, left = chance.uniform(20, 80), 0.0, 0.0
        until = chance.expovariate(1 / 300)
        noise = _walk(chance, 120)
        for at in range(minutes):
            if left <= 0 and (until := until - 1) <= 0:
                left, until = chance.uniform(20, 60), chance.expovariate(1 / 300)
                other = chance.uniform(10, 90)
            left -= 1
            yield (other if left > 0 else base) + 3 * noise[at]


def _walk(chance: random.Random, tau_min: float) -> list[float]:
    """Noise that remembers `tau_min` minutes, of variance 1."""
    keep, at, found = math.exp(-1 / tau_min), chance.gauss(0, 1), []
    for _ in range(DAYS * DAY):
        at = keep * at + math.sqrt(1 - keep * keep) * chance.gauss(0, 1)
        found.append(at)
    return found


def _links(chance: random.Random) -> Iterator[float]:
    left, bps = 0.0, NOMINAL_BPS
    for _ in range(DAYS * DAY):
        if left <= 0:
            left, bps = chance.uniform(180, 600), chance.choice((NOMINAL_BPS, NOMINAL_BPS, 12e9, 6e9))
        left -= 1
        yield bps


@cache
def prompts(kind: Kind) -> tuple[int, ...]:
    """Lengths at 4096 quantiles of the cut distribution."""
    normal = NormalDist(kind.mu, kind.sigma)
    low, high = normal.cdf(math.log(128)), normal.cdf(math.log(131072))
    return tuple(
        min(max(round(math.exp(normal.inv_cdf(low + (high - low) * (i + 0.5) / 4096))), 128), 131072)
        for i in range(4096)
    )


# The rules at work.


@dataclass(slots=True)
class Watch:
    """One rule's cluster: does what the balancer says, in two minutes, and keeps what came of it."""

    rule: Rule
    measured: Measured
    offset_min: int
    tunes: bool
    shares: list[float] = field(default_factory=list)
    own: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    pump: Pump[BalanceEvent, BalanceEffect] = field(init=False)
    balancer: Balancer = field(init=False)
    tuner: Tuner = field(init=False)

    def __post_init__(self) -> None:
        policy = BalancePolicy(self.rule)
        self.balancer = Balancer(policy, hardware(), self.measured)
        self.tuner = Tuner(TunePolicy(), hardware(), self.measured, 19_400)
        self.pump = Pump(self.balancer, self._perform)
        names = [NodeName(f"n{at}") for at in range(NODES)]
        self.pump.post(self.offset_min * MINUTE_NS, Staffed(tuple(names[:3]), tuple(names[3:]), (REMOTE_NODES,)))

    def minute(self, at: int, now: Minute, top: float) -> None:
        """The minute that begins."""
        now_ns = at * MINUTE_NS
        self.pump.run_due(now_ns)
        self.balancer.validate()
        prefill, decode = self.balancer.prefill, self.balancer.decode
        if self.tunes:
            self.tuner.handle(now_ns, Staffed(prefill, decode, (REMOTE_NODES,)))
            if at % 5 == self.offset_min:
                self.tuner.handle(now_ns, Look())
        if at >= WARM_MIN:
            self.counts.append(len(prefill))
            self.shares.append(rate(now, len(prefill), len(decode)) / top)
            if self.tunes:
                self.own.append(rate(now, len(prefill), len(decode), self.tuner.threshold) / top)

    def _perform(self, now_ns: int, effect: BalanceEffect) -> None:
        match effect:
            case Drain(node):
                self.pump.later(now_ns + MINUTE_NS, Drained(node))
            case Convert(node, role):
                self.steps.append((now_ns // MINUTE_NS, 1 if role == "prefill" else -1))
                self.pump.later(now_ns + MINUTE_NS, Converted(node))
            case _:
                pass

    @property
    def reversals(self) -> int:
        """Conversions that undo the one before, within two hours."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return sum(b[1] == -a[1] and b[0] - a[0] <= 120 for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Run:
    """One pattern under one seed: what each rule made of it. `fixed`: the share of the clairvoyant's rate, by n_p."""

    pattern: str
    seed: int
    watches: Mapping[str, Watch]
    fixed: Mapping[int, list[float]]
    best: list[int]


def run(name: str, seed: int, rules: Mapping[str, Callable[[], Rule]]) -> Run:
    """All rules see the same requests."""
    minutes = pattern(name, seed)
    chance = random.Random(f"requests {name} {seed}")
    measured = Measured((NOMINAL_BPS,), 1024.0)
    watches = {rule: Watch(make(), measured, seed % 5, rule == OURS) for rule, make in rules.items()}
    fixed: dict[int, list[float]] = {n: [] for n in range(1, NODES)}
    tops: list[int] = []
    ended: list[int] = []
    for at, now in enumerate(minutes):
        top, n_p = best(now)
        for watch in watches.values():
            watch.minute(at, now, top)
        if at >= WARM_MIN:
            tops.append(-n_p)
            for n, shares in fixed.items():
                shares.append(rate(now, n, NODES - n) / top)
        begin_ns = at * MINUTE_NS
        measured.carried(begin_ns, 0, now.bps * chance.uniform(0.9, 1.0))
        for output in ended:
            measured.ended(begin_ns, output)
        ended = arrivals(measured, begin_ns, now, LOAD * top, chance)
    return Run(name, seed, watches, fixed, tops)


def arrivals(measured: Measured, begin_ns: int, now: Minute, rps: float, chance: random.Random) -> list[int]:
    """A minute of Poisson arrivals; what their answers' lengths will be."""
    share, outputs = now.percent / 100, []
    long, short = prompts(LONG), prompts(SHORT)
    at = chance.expovariate(rps)
    while at < 60:
        is_long = chance.random() < share
        tokens = (long if is_long else short)[chance.randrange(4096)]
        measured.arrived(begin_ns + int(at * 1e9), tokens, tokens)
        mean = (LONG if is_long else SHORT).output * now.output
        outputs.append(max(1, round(chance.expovariate(1 / mean))))
        at += chance.expovariate(rps)
    return outputs


# What came of it.


def p5(shares: Sequence[float]) -> float:
    return sorted(shares)[int(0.05 * len(shares))]


def summary(runs: Sequence[Run]) -> dict[str, dict[str, float]]:
    """By rule. `mean`, `p5`: over all minutes of all runs, with the best t; `own_`: with the t that the tuner chose
    from what was measured; `worst_`: of the worst run."""
    found: dict[str, dict[str, float]] = {}
    hindsight = [max(one.fixed.values(), key=fmean) for one in runs]
    found["best fixed"] = _figures(hindsight) | {"conversions_a_day": 0.0, "reversals": 0}
    for rule in runs[0].watches:
        watches = [one.watches[rule] for one in runs]
        found[rule] = _figures([watch.shares for watch in watches]) | {
            "conversions_a_day": round(sum(len(watch.steps) for watch in watches) / len(runs) / DAYS, 2),
            "reversals": sum(watch.reversals for watch in watches),
        }
        if rule == OURS:
            own = _figures([watch.own for watch in watches])
            found[rule] |= {f"own_{name}": value for name, value in own.items()}
    return found


def _figures(series: Sequence[Sequence[float]]) -> dict[str, float]:
    every = [share for one in series for share in one]
    return {
        "mean": round(fmean(every), 4),
        "p5": round(p5(every), 4),
        "worst_mean": round(min(map(fmean, series)), 4),
        "worst_p5": round(min(map(p5, series)), 4),
    }


def show(title: str, found: Mapping[str, Mapping[str, float]]) -> None:
    print(f"\n{title:26}{'mean':>8}{'P5':>8}{'worst':>8}{'P5':>8}{'own t':>8}{'P5':>8}{'conv/d':>8}{'reversals':>11}")
    for rule, one in found.items():
        cells = ("mean", "p5", "worst_mean", "worst_p5", "own_mean", "own_p5")
        figures = "".join(f"{one[cell]:8.4f}" if cell in one else f"{'-':>8}" for cell in cells)
        print(f"{rule:26}{figures}{one['conversions_a_day']:8.1f}{one['reversals']:11d}")


def chart(runs: Sequence[Run], found: Mapping[str, Mapping[str, float]], file: Path) -> None:
    """One run of each pattern: the best n_p and ours; and for all runs of the shifting mixes, how often rules do how
    well."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    firsts = [next(one for one in runs if one.pattern == name) for name in dict.fromkeys(one.pattern for one in runs)]
    figure, axes = pyplot.subplots(len(firsts) + 1, 1, figsize=(10, 2.1 * len(firsts) + 4), layout="constrained")
    for axis, one in zip(axes, firsts, strict=False):
        hours = [(at + WARM_MIN) / 60 for at in range(len(one.best))]
        axis.step(hours, one.best, color="#bbbbbb", linewidth=2.5, label="best, clairvoyant")
        axis.step(hours, one.watches[OURS].counts, color="#0b5fa5", linewidth=1.2, label="ours")
        axis.set(title=f"{one.pattern} (seed {one.seed})", ylabel="prefill nodes", ylim=(0.5, 6.5), xlim=(0, 72))
        axis.set_xticks(range(0, 73, 12))
    axes[0].legend(loc="upper right", ncols=2, frameon=False)
    axes[-2].set_xlabel("hours")
    every = [one for one in runs if one.pattern in SHIFTING]
    lines = {"best fixed": [share for one in every for share in max(one.fixed.values(), key=fmean)]}
    lines |= {rule: [share for one in every for share in one.watches[rule].shares] for rule in found if rule in RULES}
    for rule, shares in lines.items():
        if rule in ("predictive, no drift", "predictive, back at once"):
            continue
        ordered = sorted(shares)[:: max(1, len(shares) // 2000)]
        steps = [100 * (at + 1) / len(ordered) for at in range(len(ordered))]
        style = {"color": "#0b5fa5", "linewidth": 2.5} if rule == OURS else {"linewidth": 1.2}
        axes[-1].plot(steps, ordered, label=f"{rule}: mean {found[rule]['mean']:.3f}", **style)
    axes[-1].axvline(5, color="#999999", linewidth=0.8, linestyle=":")
    axes[-1].set(xlim=(0, 60), ylim=(0.7, 1.005), xlabel="percent of all minutes of diurnal, steps and drift")
    axes[-1].set(ylabel="rate / clairvoyant's", title="how often how far below the clairvoyant")
    axes[-1].legend(loc="lower right", frameon=False)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", choices=("tuning", "judging"), default="judging")
    parser.add_argument("--runs", type=int, default=8, help="seeds of each pattern")
    parser.add_argument("--patterns", nargs="*", choices=PATTERNS, default=PATTERNS)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    seeds = (TUNING if options.seeds == "tuning" else JUDGING)[: options.runs]
    began = time.perf_counter()
    runs = []
    for name, seed in ((name, seed) for name in options.patterns for seed in seeds):
        runs.append(run(name, seed, RULES))
        print(f"{name} {seed}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    report: dict[str, Any] = {"days": DAYS, "seeds": [seeds[0], seeds[-1]], "wall_s": 0.0, "patterns": {}}
    for name in options.patterns:
        report["patterns"][name] = summary([one for one in runs if one.pattern == name])
        show(name, report["patterns"][name])
    shifting = [one for one in runs if one.pattern in SHIFTING] or runs
    report["shifting"] = summary(shifting)
    show("diurnal, steps, drift", report["shifting"])
    report["wall_s"] = round(time.perf_counter() - began, 1)
    report["best_n_p"] = [min(min(one.best) for one in shifting), max(max(one.best) for one in shifting)]
    print(f"\nbest n_p from {report['best_n_p'][0]} to {report['best_n_p'][1]}; {report['wall_s']} s")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.chart:
        chart(runs, report["shifting"], options.chart)


if __name__ == "__main__":
    main()
