"""Charts of what `benchmarks.policies` found: TTFT by policy, scenario by scenario, a picture a group of scenarios.

    python -m benchmarks.policycharts docs/benchmarks/policies.json docs/benchmarks

Each panel is a metric. A point is a policy's figure as a part of the paper's for the same scenario, so 1 is the paper.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

GROUPS: dict[str, Callable[[str], bool]] = {
    "steady": lambda name: name.startswith(("steady", "two")),
    "bursts": lambda name: name.startswith(("bursts", "mmpp", "conversation", "agentic")),
    "faults": lambda name: name.startswith(("link", "1 of")),
}
METRICS = {"ttft_mean": "mean", "ttft_p90": "P90", "ttft_p99": "P99"}
STYLES = {
    "balanced": ("#999999", "x"),
    "fastest": ("#c47f00", "^"),
    "priced": ("#2a7f3f", "s"),
    "ours": ("#0b5fa5", "o"),
}
LEAST, MOST = 0.3, 1.6


def chart(title: str, found: Mapping[str, Any], file: Path) -> None:
    """One group. What is beyond the axis stands at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted(found)
    figure, axes = pyplot.subplots(
        1, len(METRICS), figsize=(12, 1.6 + 0.36 * len(names)), sharey=True, layout="constrained"
    )
    for axis, (metric, label) in zip(axes, METRICS.items(), strict=True):
        for policy, (colour, marker) in STYLES.items():
            parts = [found[name]["figures"][policy][metric] / found[name]["figures"]["paper"][metric] for name in names]
            shown = [min(max(part, LEAST), MOST) for part in parts]
            size = 46 if policy == "ours" else 30
            axis.scatter(shown, range(len(names)), color=colour, marker=marker, s=size, label=policy, zorder=3)
        axis.axvline(1.0, color="#444444", linewidth=1)
        axis.set(xlim=(LEAST - 0.03, MOST + 0.03), title=f"{label} of TTFT / the paper's")
        axis.grid(axis="both", color="#e4e4e4", linewidth=0.7)
        axis.set_axisbelow(True)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=len(STYLES), frameon=False)
    figure.suptitle(
        f"{title}: below 1 is sooner than the paper's policy (at the right edge: {MOST} or more)",
        x=0.01,
        ha="left",
        fontsize=11,
    )
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """A PNG a group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    for group, belongs in GROUPS.items():
        found = {name: one for name, one in results.items() if "figures" in one and belongs(name)}
        if found:
            chart(group, found, options.directory / f"policies-{group}.png")


if __name__ == "__main__":
    main()
