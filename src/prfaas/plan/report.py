"""A plan as text: the designs side by side, where it stops paying, what it rests on, and the verdict.

It knows how to lay figures out; it computes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prfaas.plan.designs import Binding, Design
from prfaas.plan.inputs import Inputs
from prfaas.plan.margins import MOST_HITS, Answer
from prfaas.plan.plan import Compared, Plan
from prfaas.plan.planfile import LogNormal, Trace
from prfaas.plan.verdict import verdict
from prfaas.plan.words import STAGES, bits, change, count, number, percent, table, tokens, wrapped

HEADS = {
    "prfaas": "prfaas",
    "homogeneous": "homogeneous",
    "homogeneous_same_cost": "same cost",
    "naive": "naive",
    "balanced": "balanced",
}
FORMULAS = {
    "paper": "by the paper's formulas (one representative length a class)",
    "exact": "exact (integrated over the lengths)",
}
PARTS = (0.02, 0.04, 0.08, 0.12, 0.16, 0.25, 0.5, 1.0)
"""Of the bandwidth that there is, for the sensitivity table when the file names none."""


def report(plan: Plan, compared: Compared) -> str:
    """Everything, main table by the formulas of `compared`."""
    sections = [
        _asked(plan.inputs),
        _designs(plan, compared),
        *_clusters(plan),
        _break_even(plan),
        _bandwidths(plan),
        _outputs(plan),
        _rests_on(plan.inputs),
        "\n".join(["Verdict", *(wrapped(line) for line in verdict(plan))]),
    ]
    return "\n\n".join(sections) + "\n"


def _asked(inputs: Inputs) -> str:
    said, workload = inputs.said, inputs.workload
    lengths = said.traffic.lengths
    if isinstance(lengths, LogNormal):
        what = f"log-normal, mu {lengths.mu:g}, sigma {lengths.sigma:g}, in [{lengths.least}, {lengths.most}]"
    else:
        assert isinstance(lengths, Trace)
        cache = (
            "no"
            if not lengths.hits
            else "a boundless"
            if lengths.cache_bytes is None
            else f"a {lengths.cache_bytes.text()}"
        )
        what = f"{lengths.file.rpartition('/')[2]}, with {cache} prefix cache"
    mean, context = workload.lengths.mean, workload.mean_context
    hits = f" of {tokens(context)} ({percent(1 - mean / context)} cached)" if context > mean * 1.001 else ""
    rows = [
        f"Model    {said.model.rpartition('/')[2]}: {inputs.kv_bytes(32768) / 2**20:.1f} MiB of KV at 32,768 tokens",
        f"Traffic  {what}",
        f"         mean {tokens(mean)} uncached tokens{hits}, {number(workload.output, 0)} of answer",
    ]
    for name, cluster in said.clusters.items():
        nodes = count(cluster.nodes, "node")
        batch = _batch(inputs, name) if name in inputs.batches else ""
        rows.append(f"{name:8} {cluster.kind}: {nodes} of {cluster.gpus}, {inputs.profiles[name].name}{batch}")
    homes = inputs.homes.values()
    if len(homes) > 1 and all(cluster.share is None for cluster in homes):
        rows.append("share    by their nodes: a node more also draws traffic to its cluster (`share` holds it)")
    for link in said.links:
        rows.append(f"link     {link.source} -> {link.target}: {link.bandwidth_bps.text()}")
    return "\n".join(rows)


def _batch(inputs: Inputs, name: str) -> str:
    step = f"{number(inputs.step_ns(name) / 1e6)} ms a token"
    missed = "" if inputs.meets_tpot(name) else ": TPOT missed"
    return f", decode batch {inputs.batches[name]}, {step}{missed}"


def _designs(plan: Plan, compared: Compared) -> str:
    designs = compared.all()
    other = plan.paper if compared.formulas == "exact" else plan.exact
    others = {design.name: design.rate for design in other.all()}

    def row(head: str, cell: Callable[[Design], str]) -> list[str]:
        return [head, *(cell(design) for design in designs)]

    def nodes(one: Design) -> str:
        remote = str(one.n_prfaas) if one.site.remotes else "-"
        prefill = "-" if one.name == "naive" and not sum(one.n_p) else str(sum(one.n_p))
        return f"{remote} / {prefill} / {sum(one.n_d)}"

    rows = [
        row("", lambda one: HEADS[one.name]),
        row("threshold t, tokens", lambda one: tokens(one.threshold)),
        row("N_prfaas / N_p / N_d", nodes),
        row("Theta_prfaas, req/s", lambda one: number(one.theta.prfaas)),
        row("Theta_pd_p", lambda one: number(one.theta.pd_p)),
        row("Theta_pd_d", lambda one: number(one.theta.pd_d)),
        row("Lambda_max, req/s", lambda one: number(one.rate)),
        row(f"  {'paper' if other.formulas == 'paper' else 'exact'}", lambda one: number(others[one.name])),
        row("  differs by", lambda one: change(others[one.name] / one.rate) if one.rate else "-"),
        row("prfaas over it", lambda one: number(compared.ratio(one))),
        row("TTFT mean, s", lambda one: number(one.ttft_mean_s)),
        row("TTFT P90, s", lambda one: number(one.ttft_p90_s)),
        row("offloaded", lambda one: percent(one.offloaded, 1) if one.site.remotes else "-"),
        row("egress, Gbps", lambda one: number(one.egress_bps / 1e9, 1) if one.site.remotes else "-"),
        *(
            row("  and" if at else "limit", lambda one, at=at: _limit(one, at))  # type: ignore[misc]
            for at in range(max(len(one.limits) for one in designs))
        ),
    ]
    for stage in ("prfaas", "link", "pd_p", "pd_d"):
        rows.append(row(f"spare: {STAGES[stage].removeprefix('the ')}", lambda one, stage=stage: _spare(one, stage)))  # type: ignore[misc]
    if any(plan.cost(one) is not None for one in designs):
        rows.append(row("cost of 1M tokens", lambda one: number(plan.cost(one), 3)))
    text = [f"Designs, each at its best, {FORMULAS[compared.formulas]}", table(rows)]
    text.append(
        "  TTFT is bare prefill time, integrated over the lengths: no queue, no transfer, no round trip is in it."
    )
    if len(plan.inputs.remotes) + len(plan.inputs.homes) > 2:
        text.append("  Spare is what the fullest cluster or link of a kind has left; how busy each is stands below.")
    text.append(
        f"  No rule by length, whatever it sends where, can exceed {number(plan.bound)} req/s (exact); prfaas is at "
        f"{percent(plan.exact.prfaas.rate / plan.bound, 1)} of it."
    )
    own, same = compared.balanced_own, compared.balanced
    if own.n_p != same.n_p:
        text.append(
            f"  balanced has the nodes of prfaas; with its own best ones, N_p {sum(own.n_p)}, it does "
            f"{number(own.rate)} req/s."
        )
    return "\n".join(text)


def _limit(design: Design, at: int) -> str:
    return STAGES[design.limits[at]].removeprefix("the ") if at < len(design.limits) else "-"


def _spare(design: Design, stage: str) -> str:
    used = {str(key): part for key, part in design.used.items()}.get(stage)
    return "-" if used is None else percent(max(0.0, 1 - used))


def _clusters(plan: Plan) -> Iterator[str]:
    """Who does what, where there are several clusters of a kind."""
    inputs, best = plan.inputs, plan.exact.prfaas
    if len(inputs.remotes) == 1 and len(inputs.homes) == 1:
        return
    lines = [f"Who does what (exact): requests above {tokens(best.threshold)} go away, so spread"]
    head = ["", "N_p / N_d", "share", *(f"to {name}" for name in inputs.remotes), "stays"]
    rows = [head]
    weights = best.site.lengths.weights
    for at, (name, home) in enumerate(zip(inputs.homes, best.site.homes, strict=True)):
        away = [sum(w * part for w, part in zip(weights, row, strict=True)) for row in best.shares[at]]
        cells = [percent(share) for share in (*away, 1 - sum(away))]
        rows.append([name, f"{best.n_p[at]} / {best.n_d[at]}", percent(home.share), *cells])
    lines.append(table(rows))
    yield "\n".join(lines)
    yield f"How busy each is at {number(best.rate)} req/s (exact)\n{table(list(_busy(plan, best)))}"


def _busy(plan: Plan, best: Design) -> Iterator[list[str]]:
    remotes, homes = list(plan.inputs.remotes), list(plan.inputs.homes)
    width = len(remotes)

    def cells(stage: Binding, at: int) -> str:
        parts = best.busy.get(stage)
        return percent(parts[at]) if parts else "-"

    yield ["", "prefill", "decode", *(f"line to {name}" for name in homes)]
    for k, name in enumerate(remotes):
        there = (home.links_bps[k] for home in best.site.homes)
        lines = [cells("link", at * width + k) if bps else "-" for at, bps in enumerate(there)]
        yield [name, cells("prfaas", k), "-", *lines]
    for at, name in enumerate(homes):
        prefill = cells("pd_p", at) if best.n_p[at] else "-"
        yield [name, prefill, cells("pd_d", at), *("-" for _ in homes)]


def _break_even(plan: Plan) -> str:
    found, wide = plan.break_even, plan.margins.links_bps
    price, hits = plan.price_ratio, found.hits
    pays = plan.exact.prfaas.rate > plan.exact.homogeneous.rate
    never = f"not up to {percent(MOST_HITS)}" if pays else "0 %"
    rows = [
        ["links begin to bind below", bits(found.binds_bps) if found.binds_bps else "never"],
        [
            "no gain over homogeneous below",
            bits(found.bandwidth_bps) if found.bandwidth_bps else "never" if pays else "any",
        ],
        ["a request costs more when a PrfaaS node costs, in PD nodes, above", number(price) if price else "0"],
        ["no gain once a cache saves, of what is computed now", percent(hits) if hits else never],
    ]
    coarse = f"  What a cache saves is asked over {len(plan.margins.coarse.workload.lengths)} bins of length, "
    coarse += f"all else over {len(plan.site.lengths)}."
    return f"Where it stops paying (exact; all links together, {bits(wide)} now)\n{table(rows)}\n{coarse}"


def _bandwidths(plan: Plan) -> str:
    wide = plan.margins.links_bps
    tried = [float(bps) for bps in plan.inputs.said.compare.bandwidth_bps] or [wide * part for part in PARTS]
    rows = [(bits(bps), plan.margins.with_bandwidth(bps)) for bps in tried]
    return _sensitivity("Sensitivity to bandwidth (exact, each at its best)", "all links", rows)


def _outputs(plan: Plan) -> str:
    rows = [(str(out), plan.margins.with_output(out)) for out in plan.inputs.said.compare.output]
    return _sensitivity("Sensitivity to the length of answers (exact, each at its best)", "tokens", rows)


def _sensitivity(title: str, what: str, answers: list[tuple[str, Answer]]) -> str:
    rows = [[what, "prfaas", "homogeneous", "ratio", "t", "N_p / N_d"]]
    for name, one in answers:
        nodes = f"{sum(one.n_p)} / {sum(one.n_d)}"
        rows.append(
            [name, number(one.prfaas), number(one.homogeneous), number(one.ratio), tokens(one.threshold), nodes]
        )
    return f"{title}\n{table(rows)}"


def _rests_on(inputs: Inputs) -> str:
    lines = ["What these figures rest on"]
    seen = set()
    for name, profile in inputs.profiles.items():
        if profile.name not in seen:
            seen.add(profile.name)
            lines.append(f"  {profile.name}: {profile.source} ({profile.date})")
            outside = inputs.extrapolated(name)
            if outside > 0.001:
                lines.append(
                    f"    {percent(outside, 1)} of the requests lie outside its points (length, or what is cached)"
                )
    lines += [
        f"  {name}: a decode step of {batch} sequences lies outside the points of {inputs.profiles[name].name}"
        for name, batch in inputs.batches.items()
        if inputs.decode_extrapolated(name)
    ]
    lines += [wrapped(note) for note in inputs.said.notes]
    return "\n".join(lines)
