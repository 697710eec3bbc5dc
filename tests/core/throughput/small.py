"""Small sites for tests, and the same questions answered by trying everything."""

from __future__ import annotations

from itertools import combinations, product
from math import inf

from hypothesis import strategies as st

from prfaas.core.throughput.lengths import Lengths, histogram
from prfaas.core.throughput.site import Home, Remote, Site
from prfaas.core.throughput.split import Splits

BITS = 8


def site_of(
    lengths: Lengths, remotes: list[tuple[int, float, float]], homes: list[tuple[int, float, float, float, list[float]]]
) -> Site:
    """Remotes: nodes, base and slope of prefill seconds. Homes: nodes, base, slope, decode rate, links in bytes a
    second."""

    def table(base: float, slope: float) -> tuple[float, ...]:
        return lengths.table(lambda tokens: base + slope * tokens)

    share = 1 / len(homes)
    return Site(
        lengths,
        lengths.table(lambda tokens: 50 + tokens),
        tuple(Remote(nodes, table(base, slope)) for nodes, base, slope in remotes),
        tuple(
            Home(nodes, table(base, slope), rate, share, tuple(BITS * link for link in links))
            for nodes, base, slope, rate, links in homes
        ),
    )


@st.composite
def sites(draw: st.DrawFn, remotes: int = 2, homes: int = 2, bins: int = 6) -> Site:
    """Up to so many of each, with every link there or not, but one at least."""
    counts = draw(st.dictionaries(st.integers(1, 400), st.integers(1, 9), min_size=2, max_size=bins))
    times = (st.floats(0.01, 2.0), st.floats(0.0, 0.05))
    far = draw(st.lists(st.tuples(st.integers(1, 4), *times), min_size=1, max_size=remotes))
    width = st.sampled_from([0.0, 20.0, 100.0, 1000.0])
    links = st.lists(width, min_size=len(far), max_size=len(far)).filter(any)
    near = st.tuples(st.integers(1, 5), *times, st.floats(0.05, 3.0), links)
    return site_of(histogram(counts.items()), far, draw(st.lists(near, min_size=1, max_size=homes)))


def brute_rate(site: Site, formulas: str) -> float:
    """The best rate over every threshold and every whole number of prefill nodes; long requests by `brute_away`."""
    splits = Splits(site, formulas)  # type: ignore[arg-type]
    best = 0.0
    for cut in range(len(site.lengths) + 1):
        split = splits.at(cut)
        away = brute_away(site, cut, formulas)
        for n_p in product(*(range(home.nodes) for home in site.homes)):
            rate = away
            for at, (home, n) in enumerate(zip(site.homes, n_p, strict=True)):
                cost = home.share * ((1 - split.p) * split.short_s[at] if home.linked else split.whole_s[at])
                rate = min(rate, n / cost if cost > 0 else inf, (home.nodes - n) * home.decode_rate / home.share)
            best = max(best, rate)
    return best


def brute_away(site: Site, cut: int, formulas: str) -> float:
    """What the remotes take of the bins from `cut` on: every vertex of the linear program, patterns listed."""
    split = Splits(site, formulas).at(cut)  # type: ignore[arg-type]
    if not split.p or not any(home.linked for home in site.homes):
        return inf
    paper = formulas == "paper"
    classes = [(at, None) for at in range(1)] if paper else [(at, at) for at in range(cut, len(site.lengths))]
    work = [(home, at, one[1]) for home, h in enumerate(site.homes) if h.linked for at, one in enumerate(classes)]
    caps = [float(remote.nodes) for remote in site.remotes] + [bps for home in site.homes for bps in home.links_bps]
    width = len(site.remotes)
    columns = []
    options = [[k for k in range(width) if site.homes[home].links_bps[k] > 0] for home, _, _ in work]
    for picks in product(*options):
        loads = [0.0] * len(caps)
        for (home, _, bin_), k in zip(work, picks, strict=True):
            weight = site.homes[home].share * (split.p if bin_ is None else site.lengths.weights[bin_])
            seconds = split.long_s[k] if bin_ is None else site.remotes[k].prefill_s[bin_]
            size = split.long_bytes if bin_ is None else site.kv_bytes[bin_]
            loads[k] += weight * seconds
            loads[width * (1 + home) + k] += weight * size * BITS
        columns.append([load / cap if cap else 0.0 for load, cap in zip(loads, caps, strict=True)])
    rows = [at for at, cap in enumerate(caps) if cap]
    return best_vertex([[column[at] for at in rows] for column in columns])


def best_vertex(columns: list[list[float]]) -> float:
    """max sum x with columns @ x <= 1, x >= 0: over all bases of columns and slacks."""
    rows = len(columns[0])
    slack = [[1.0 if i == at else 0.0 for i in range(rows)] for at in range(rows)]
    every = [(column, 1.0) for column in columns] + [(column, 0.0) for column in slack]
    best = 0.0
    for chosen in combinations(range(len(every)), rows):
        xs = solved([every[at][0] for at in chosen])
        if xs is not None and min(xs) >= -1e-9:
            best = max(best, sum(x * every[at][1] for x, at in zip(xs, chosen, strict=True)))
    return best


def solved(columns: list[list[float]]) -> list[float] | None:
    """x with sum x_i columns_i = 1 in every row, by elimination; None when singular."""
    rows = len(columns)
    matrix = [[columns[j][i] for j in range(rows)] + [1.0] for i in range(rows)]
    for at in range(rows):
        pivot = max(range(at, rows), key=lambda i: abs(matrix[i][at]))
        if abs(matrix[pivot][at]) < 1e-12:
            return None
        matrix[at], matrix[pivot] = matrix[pivot], matrix[at]
        for i in range(rows):
            if i != at and matrix[i][at]:
                factor = matrix[i][at] / matrix[at][at]
                matrix[i] = [a - factor * b for a, b in zip(matrix[i], matrix[at], strict=True)]
    return [matrix[at][rows] / matrix[at][at] for at in range(rows)]
