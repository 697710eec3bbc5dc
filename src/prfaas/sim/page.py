"""The report of a run: one page that needs nothing else, and the same as JSON.

It knows what is shown and where; figures are `answer`'s, charts `charts`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from prfaas.core.errors import ConfigError
from prfaas.sim.answer import BalanceAnswer, SimulateAnswer, Times, as_json, simulate_answer
from prfaas.sim.arrivals import SECOND_NS
from prfaas.sim.charts import STYLE as CHARTS
from prfaas.sim.charts import Points, bars, lines
from prfaas.sim.faults import Fault
from prfaas.sim.run import Outcome
from prfaas.sim.stats import Histogram
from prfaas.sim.words import SATURATED, offered_words, shown

STYLE = (
    """
:root { color-scheme: light dark }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1380px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem; overflow-wrap: anywhere }
.facts { display: flex; flex-wrap: wrap; gap: 0 1.6rem; padding: 0; list-style: none }
.wide { overflow-x: auto; margin: 1rem 0 } table { border-collapse: collapse }
th, td { padding: .2rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884 }
th:first-child { text-align: left; padding-left: 0 }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); gap: 1.5rem }
@media (max-width: 560px) { body { margin-top: 1rem } 
th, td { padding: .2rem .25rem; font-size: .8rem } th { white-space: normal } }
"""
    + CHARTS
)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""The page asks nobody for anything, whatever is in a name."""
TIMES = (
    ("first token", "ttft_s"),
    ("each further token", "tpot_s"),
    ("last token", "e2e_s"),
    ("wait for prefill", "queue_wait_s"),
    ("exposed transfer", "exposed_transfer_s"),
)


def write_report(outcome: Outcome, directory: Path) -> Path:
    """`index.html` and `simulate.json` in `directory`; the page's path. Raises ConfigError where that is not
    possible."""
    page = directory / "index.html"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        page.write_text(report_page(outcome), encoding="utf-8")
        (directory / "simulate.json").write_text(as_json(simulate_answer(outcome)), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}; expected a directory to write the report to") from None
    return page


def report_page(outcome: Outcome) -> str:
    """The page."""
    said = simulate_answer(outcome)
    rate = "all at once" if said.offered_rps is None else f"{said.offered_rps:.3g} requests a second"
    title = f"{said.policy}: {rate}, seed {said.seed}"
    body = [f"<h1>prfaas simulate &mdash; {escape(title)}</h1>", _summary(said, outcome), _times(said), "<main>"]
    body += [_distributions(outcome), _over_time(outcome), _waiting(outcome), _egress(outcome)]
    body.append(bars("Decisions by reason", list(said.decisions.items())))
    body.append(bars("Busy prefill nodes, %", [(name, round(100 * part, 1)) for name, part in said.use.items()], 100))
    if said.balance is not None:
        body.append(_staff(said.balance, said.simulated_s, outcome))
    body.append("</main>")
    if said.balance is not None:
        body.append(_conversions(said.balance))
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head += f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
    return (
        f'<!doctype html>\n<html lang="en"><head>{head}<style>{STYLE}</style></head>\n<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _summary(said: SimulateAnswer, outcome: Outcome) -> str:
    bound = outcome.run.planned.bound
    facts = [
        f"{said.completed:,} of {said.arrived:,} requests completed, {said.measured:,} measured",
        f"{offered_words(said.offered_rps, bound)}, {bound:.3f}",
        f"goodput {shown(said.goodput_rps, '.3f')} requests a second",
        f"prefilled away {shown(said.offloaded, '.1%')}, found in caches {shown(said.hit_share, '.1%')}",
        f"egress {said.egress_gbps.mean:.2f} Gbps, peak {said.egress_gbps.peak:.2f}",
        f"moved {said.moved:,}, prefilled again {said.rescued:,}, placed again {said.retried:,}",
    ]
    if said.no_room or said.expired:
        facts.append(f"no room in a cache {said.no_room:,}, KV given up {said.expired:,}")
    if said.saturated:
        facts.append(SATURATED)
    if said.stuck:
        facts.append(f"{said.stuck:,} can never end")
    facts += said.notes
    if said.interrupted:
        facts.append("ended early")
    faults = [_fault(one) for one in outcome.run.scenario.planned_faults()]
    return _list(facts) + (_list(["Faults:", *faults]) if faults else "")


def _list(facts: Sequence[str]) -> str:
    return f'<ul class="facts">{"".join(f"<li>{escape(fact)}</li>" for fact in facts)}</ul>'


def _fault(one: Fault) -> str:
    """What, where and when."""
    at = f"{one.kind} {one.cluster}"
    if one.kind == "link":
        at += f" to {one.target} at {one.bps / 1e9:g} Gbps" if one.bps else f" to {one.target} down"
    elif one.kind != "service_down":
        at += f" {one.node}" + (f", {one.factor:g} times as slow" if one.kind == "slow_node" else "")
    return f"{at}: {one.at_ns / 1e9:,.0f} to {one.until_ns / 1e9:,.0f} s"


def _unit(ns: int) -> tuple[float, str]:
    for seconds, name in ((3600, "hours"), (60, "minutes")):
        if ns >= 3 * seconds * SECOND_NS:
            return float(seconds * SECOND_NS), f"simulated {name}"
    return float(SECOND_NS), "simulated seconds"


def _series(title: str, y_name: str, rows: Sequence[tuple[str, Points]], outcome: Outcome) -> str:
    """Lines over time, which is given in ns, with the times of faults."""
    unit, name = _unit(outcome.run.duration_ns)
    scaled = [(row, [(at_ns / unit, value) for at_ns, value in points]) for row, points in rows]
    faults = [(one.at_ns / unit, one.until_ns / unit) for one in outcome.run.scenario.planned_faults()]
    until = outcome.run.duration_ns / unit
    return lines(title, name, y_name, scaled, faults, "a fault", until=until, counts=y_name in ("requests", "nodes"))


def _times(said: SimulateAnswer) -> str:
    rows = []
    for name, key in TIMES:
        times: Times = getattr(said, key)
        values = (times.mean, times.p50, times.p90, times.p99)
        texts = [shown(value, ".4f" if value and value < 0.1 else ".3f") for value in values]
        cells = "".join(f"<td>{text}</td>" for text in texts)
        rows.append(f"<tr><th>{name}</th>{cells}</tr>")
    head = "<tr><th>seconds</th><th>mean</th><th>p50</th><th>p90</th><th>p99</th></tr>"
    return f'<div class="wide"><table>{head}{"".join(rows)}</table></div>'


def _distributions(outcome: Outcome) -> str:
    tally = outcome.tally

    def share(values: Histogram) -> list[tuple[float, float]]:
        return [(ns / 1e9, 100 * part) for ns, part in values.steps()] if values.count else []

    rows = [("first token", share(tally.ttft)), ("wait for prefill", share(tally.queued))]
    return lines("Requests that took no longer", "seconds", "%", rows)


def _over_time(outcome: Outcome) -> str:
    tally = outcome.tally
    windows = zip(tally.series_ttft, tally.series_first, strict=True)
    points = [(at * tally.window_ns, total / many / 1e9) for at, (total, many) in enumerate(windows) if many]
    return _series("Time to the first token, by arrival", "seconds", [("first token", points)], outcome)


def _waiting(outcome: Outcome) -> str:
    names = [one.name for one in outcome.world.setup.clusters]
    rows = [
        (name, [(at_ns, float(waiting[at])) for at_ns, waiting, _ in outcome.tally.series])
        for at, name in enumerate(names)
    ]
    return _series("Requests that wait for prefill", "requests", rows, outcome)


def _staff(said: BalanceAnswer, until_s: float, outcome: Outcome) -> str:
    """Steps, not slopes: a node takes work or does not."""
    rows: dict[str, list[tuple[float, float]]] = {"prefill": [], "decode": []}
    for one, after in zip(said.staff, [*(one.at_s for one in said.staff[1:]), until_s], strict=True):
        for name, count in (("prefill", one.prefill), ("decode", one.decode)):
            rows[name] += [(one.at_s * 1e9, float(count)), (after * 1e9, float(count))]
    return _series("Nodes of the PD cluster that take work", "nodes", list(rows.items()), outcome)


def _conversions(said: BalanceAnswer) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("node", "s", "to", "prefill, decode before", "why", "gain", "done, s")
    )
    rows = []
    for one in said.conversions:
        done = "-" if one.done_s is None else f"{one.done_s:.0f}"
        cells = (f"{one.at_s:.0f}", one.to, f"{one.n_p}, {one.n_d}", one.why, f"{one.gain:.1%}", done)
        rows.append(f"<tr><th>{escape(one.node)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
    tuned = "; ".join(f"{one.tokens:,} from {one.at_s:.0f} s" for one in said.thresholds) or "not moved"
    return (
        f"<p>Roles by {escape(said.rule)}: conversions {len(said.conversions)}, {said.reversals} undone within two "
        f"hours. Threshold: {tuned}.</p>"
        f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'
    )


def _egress(outcome: Outcome) -> str:
    window = outcome.tally.window_ns
    points: list[tuple[float, float]] = []
    before = 0.0
    for at_ns, _, sent in outcome.tally.series:
        points.append((at_ns, (sent - before) * 8 / window))
        before = sent
    return _series("KV over links", "Gbps", [("egress", points)], outcome)
