"""Pictures of a plan: Lambda_max over the threshold, over prefill nodes, over bandwidth; KV throughput over length.

It knows what is drawn; figures are the plan's. matplotlib is an extra, imported when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prfaas.core.errors import ConfigError
from prfaas.core.throughput.equations import kv_throughput_bps
from prfaas.core.throughput.search import Search
from prfaas.core.throughput.split import Splits
from prfaas.model.hf.table3 import LENGTHS, PHI_KV_GBPS
from prfaas.plan.plan import Plan
from prfaas.plan.words import bits, count, number, tokens

NEEDED = "pictures need matplotlib; expected it installed: pip install 'prfaas[plots]'"
COLOURS = {"prfaas": "#1f5fa8", "homogeneous": "#c0504d", "naive": "#7f7f7f", "balanced": "#4f8f3a", "light": "#9dc3e6"}
MOST_POINTS, MOST_MARKS = 400, 40
"""Of a line, and of those with a mark each."""
PAPER: Any = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
"""Behind words that lines may cross."""


def check_drawing() -> None:
    """Raises ConfigError without matplotlib."""
    if find_spec("matplotlib") is None:
        raise ConfigError(NEEDED)


def draw_all(plan: Plan, directory: Path, kind: str = "svg") -> list[Path]:
    """Draw every picture into `directory`, which is made if need be; the files. `kind`: svg or png. Raises ConfigError
    without matplotlib, or when the directory cannot be written."""
    check_drawing()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pictures: dict[str, Callable[[Plan, Any], None]] = {
        "lambda-over-threshold": over_threshold,
        "lambda-over-prefill-nodes": over_prefill_nodes,
        "lambda-over-bandwidth": over_bandwidth,
        "kv-throughput": kv_throughput,
    }
    made = []
    style: Any = {"font.size": 10, "svg.hashsalt": "prfaas", "axes.spines.top": False, "axes.spines.right": False}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, draw in pictures.items():
            with pyplot.rc_context(style):
                figure, axes = pyplot.subplots(figsize=(8.2, 4.2), layout="constrained")
                draw(plan, axes)
                made.append(directory / f"{name}.{kind}")
                figure.savefig(made[-1], dpi=150, metadata={"Date": None} if kind == "svg" else None)
                pyplot.close(figure)
    except OSError as error:
        raise ConfigError(f"{directory}: {error.strerror}; expected a directory for pictures") from None
    return made


def over_threshold(plan: Plan, axes: Any) -> None:
    """Lambda_max at each threshold, with the best whole nodes for it and with the best design's nodes; what limits
    it."""
    splits = Splits(plan.site, "exact")
    search = Search(plan.site, splits)
    best = search.best()
    lengths = plan.site.lengths
    every = [cut for cut in _spread(len(splits)) if lengths.threshold(cut)]
    cuts = [cut for cut in every if lengths.threshold(cut) >= 1000] or every
    ts = [lengths.threshold(cut) / 1000 for cut in cuts]
    shapes = [search.shape(cut, best.n_p) for cut in cuts]
    most = best.rate * 2.2

    def clipped(values: Sequence[float]) -> list[float | None]:
        return [value if value <= most else None for value in values]

    def line(values: Sequence[float], **style: Any) -> None:
        axes.plot(ts, [float("nan") if value is None else value for value in clipped(values)], **style)

    line([s.remote for s in shapes], color=COLOURS["prfaas"], ls="--", lw=1.2, label="PrfaaS and link allow")
    line(
        [s.prefill for s in shapes],
        color=COLOURS["balanced"],
        ls="--",
        lw=1.2,
        label=f"{count(sum(best.n_p), 'PD prefill node')} allow",
    )
    axes.axhline(best.decode, color=COLOURS["naive"], ls=":", lw=1.2, label="decode nodes allow")
    line([s.rate for s in shapes], color=COLOURS["prfaas"], lw=2.4, label="$\\Lambda_{max}$ with these nodes")
    line(
        [search.with_cut(cut).rate for cut in cuts],
        color=COLOURS["light"],
        lw=2.4,
        zorder=1,
        label="$\\Lambda_{max}$, best nodes for each t",
    )
    axes.axhline(plan.exact.homogeneous.rate, color=COLOURS["homogeneous"], lw=1.2, label="homogeneous")
    best_t = lengths.threshold(best.cut)
    t = max(best_t / 1000, ts[0])
    axes.plot([t], [best.rate], "o", color=COLOURS["prfaas"], zorder=5)
    # Above the best point what PrfaaS and what PD prefill allow go apart, so no line comes through words there.
    axes.annotate(
        f"{number(best.rate)} req/s\nat t = {tokens(best_t)}",
        (t, best.rate),
        (t, most * 0.9),
        ha="center" if t > 3 * ts[0] else "left",
        va="center",
        bbox=PAPER,
        arrowprops={"arrowstyle": "-", "lw": 0.6, "color": COLOURS["naive"]},
    )
    axes.set(xscale="log", xlabel="threshold t, thousand uncached tokens", ylabel="requests a second", ylim=(0, most))
    axes.set_title("Throughput over the threshold (exact)", loc="left")
    _ticks(axes)
    _legend(axes)


def over_prefill_nodes(plan: Plan, axes: Any) -> None:
    """Lambda_max at each number of prefill nodes, each with its best threshold. Several PD clusters: all change at the
    best design's proportions."""
    search = Search(plan.site, Splits(plan.site, "exact"))
    homes = plan.site.homes
    whole = sum(home.nodes for home in homes)
    counts = range(whole) if whole <= MOST_MARKS else sorted({round(whole * part / 60) for part in range(60)})
    points = []
    for prefill in counts:
        n_p = tuple(min(home.nodes - 1, round(prefill * home.nodes / whole)) for home in homes)
        shape = search.with_nodes(n_p)
        points.append((sum(n_p), shape))
    xs = [x for x, _ in points]
    axes.plot(
        xs,
        [s.rate for _, s in points],
        marker="o" if len(points) <= MOST_MARKS else None,
        ms=4,
        color=COLOURS["prfaas"],
        label="$\\Lambda_{max}$, best t for each",
    )
    if len(points) > MOST_MARKS:
        best = search.best()
        axes.plot([sum(best.n_p)], [best.rate], "o", color=COLOURS["prfaas"], label=f"at best: N_p {sum(best.n_p)}")
    axes.plot(
        xs,
        [min(s.remote, s.prefill) for _, s in points],
        ls="--",
        lw=1.2,
        color=COLOURS["balanced"],
        label="prefill allows",
    )
    axes.plot(xs, [s.decode for _, s in points], ls=":", lw=1.4, color=COLOURS["naive"], label="decode allows")
    axes.axhline(plan.exact.homogeneous.rate, color=COLOURS["homogeneous"], lw=1.2, label="homogeneous, at its best")
    if len(points) <= 10:
        for x, shape in points:
            label = f"t {tokens(plan.site.lengths.threshold(shape.cut))}"
            axes.annotate(
                label, (x, shape.rate), (0, -15), textcoords="offset points", ha="center", fontsize=7.5, bbox=PAPER
            )
    axes.set(xlabel="prefill nodes in the PD clusters, N_p", ylabel="requests a second", ylim=(0, None))
    axes.set_title(f"Throughput over prefill nodes, of {whole} PD nodes (exact)", loc="left")
    _legend(axes)


def over_bandwidth(plan: Plan, axes: Any) -> None:
    """Lambda_max over the bandwidth of all links together, each at its best."""
    margins = plan.margins
    found = plan.break_even
    marks = [bps for bps in (found.binds_bps, found.bandwidth_bps) if bps is not None]
    wide = margins.links_bps
    low, high = min([wide / 100, *(bps / 4 for bps in marks)]), max([wide * 2, *(bps * 3 for bps in marks)])
    points = 80 if len(plan.site.remotes) == 1 else 30
    xs = [low * (high / low) ** (at / (points - 1)) / 1e9 for at in range(points)]
    answers = [margins.with_bandwidth(x * 1e9) for x in xs]
    axes.plot(
        xs, [one.prfaas for one in answers], lw=2.4, color=COLOURS["prfaas"], label="prfaas, best t and nodes for each"
    )
    axes.axhline(answers[0].homogeneous, color=COLOURS["homogeneous"], lw=1.2, label="homogeneous")
    top = max(one.prfaas for one in answers)
    room = (xs[-1] / xs[0]) ** 0.16  # what words take of the axis
    for bps, word, height in ((found.bandwidth_bps, "pays above", 0.06), (found.binds_bps, "binds below", 0.2)):
        if bps is not None and xs[0] <= bps / 1e9 <= xs[-1]:
            left = bps <= wide < bps * room
            axes.axvline(bps / 1e9, color=COLOURS["naive"], lw=1, ls=":")
            axes.annotate(
                f"{word}\n{bits(bps)}",
                (bps / 1e9, top * height),
                (-4 if left else 4, 0),
                textcoords="offset points",
                ha="right" if left else "left",
                fontsize=8,
                bbox=PAPER,
            )
    axes.axvline(
        margins.links_bps / 1e9, color=COLOURS["balanced"], lw=1, ls="--", label=f"now: {bits(margins.links_bps)}"
    )
    axes.set(xscale="log", xlabel="bandwidth of all links, Gbps", ylabel="requests a second", ylim=(0, top * 1.12))
    axes.set_title("Throughput over bandwidth (exact)", loc="left")
    _ticks(axes)
    _legend(axes)


def kv_throughput(plan: Plan, axes: Any) -> None:
    """Eq. 1 over length: this plan's model on its PrfaaS nodes, and what the paper measured of others (Tables 1, 3)."""
    for at, (name, gbps) in enumerate(PHI_KV_GBPS.items()):
        dense = gbps[2] > 20
        axes.plot(
            [length / 1024 for length in LENGTHS],
            gbps,
            marker="o",
            ms=3.5,
            lw=1.2,
            ls="--" if dense else "-",
            color=f"C{at}",
            label=name,
        )
    xs = [1024 * 2 ** (step / 8) for step in range(8 * 7 + 1)]
    seen = set()
    for cluster in plan.inputs.remotes:
        profile = plan.inputs.profiles[cluster]
        if profile.name in seen:
            continue
        seen.add(profile.name)
        ys = [
            kv_throughput_bps(plan.inputs.kv_bytes(round(x)), profile.prefill_ns(round(x), round(x)) / 1e9) / 1e9
            for x in xs
        ]
        model = plan.inputs.said.model.rpartition("/")[2]
        axes.plot(
            [x / 1024 for x in xs],
            ys,
            lw=2.4,
            color="black",
            ls=("-", "--", ":")[(len(seen) - 1) % 3],
            label=f"{model} on {profile.name}",
        )
    nodes = sum(remote.nodes for remote in plan.site.remotes)
    line = plan.margins.links_bps / nodes / 1e9
    axes.axhline(line, color=COLOURS["homogeneous"], lw=1.2, ls=":")
    axes.annotate(
        f"link: {line:.3g} Gbps a PrfaaS node",
        (1, line),
        (0, 3),
        textcoords="offset points",
        bbox=PAPER,
        fontsize=8,
        color=COLOURS["homogeneous"],
    )
    axes.set(xscale="log", yscale="log", xlabel="uncached tokens, x 1024", ylabel="KV throughput of a busy node, Gbps")
    axes.set_title("KV throughput over length (eq. 1)", loc="left")
    _ticks(axes)
    _ticks(axes, "y")
    _legend(axes, "dots: 8 H200, the paper's\nTables 1 and 3 (dashed: GQA)")


def _spread(count: int) -> list[int]:
    """At most `MOST_POINTS` of 0 .. count-1."""
    return sorted({round(at * (count - 1) / (MOST_POINTS - 1)) for at in range(MOST_POINTS)} & set(range(count)))


def _ticks(axes: Any, which: str = "x") -> None:
    """Plain numbers on a logarithmic axis: at 1, 2 and 5, or at 1 alone where there are many."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis = axes.xaxis if which == "x" else axes.yaxis
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    axis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < 5000 * low else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(axes: Any, title: str | None = None) -> None:
    """Beside the picture, so that it never hides a line."""
    axes.legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5), title=title, title_fontsize=8)
