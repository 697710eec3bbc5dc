"""Table 3 of the PrfaaS paper beside aiconfigurator: prefill times of one instance of 8 H200, two ways to them.

The paper prints KV throughput (phi_kv, Gbps); with the bytes of KV that a model's config gives, exactly, Eq. 1 gives
the prefill time that it implies: T = S_kv / phi_kv. Beside it is the time that aiconfigurator sums from measured
kernels, out of the profiles that come with prfaas, with difference and ratio: what serving adds, and what differs in
engine version, parallelism and precision, of which the paper says only SGLang 0.5.9. It measures nothing here.

    python -m benchmarks.table3 [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from prfaas.model.hf.load import load_layout
from prfaas.model.hf.table3 import LENGTHS, PHI_KV_GBPS, implied_prefill_s
from prfaas.model.profilefile import load_profile

PROFILES = {
    "MiniMax-M2.5": "h200-8-minimax-m2.5",
    "Qwen3-235B-A22B": "h200-8-qwen3-235b",
    "MiMo-V2-Flash": "h200-8-mimo-v2-flash",
    "Qwen3.5-397B-A17B": "h200-8-qwen3.5-397b",
}
"""Model -> its modelled profile. The others of Table 3 are not in aiconfigurator 0.12.0."""


@dataclass(frozen=True)
class Row:
    """One model at one length. `modelled_s`, `more_s` (implied less modelled) and `ratio` are None without data."""

    model: str
    tokens: int
    kv_bytes: int
    phi_kv_gbps: float
    implied_s: float
    modelled_s: float | None
    more_s: float | None
    ratio: float | None


def rows() -> list[Row]:
    """All of Table 3."""
    return [row(model, at) for model in (*PROFILES, *(m for m in PHI_KV_GBPS if m not in PROFILES)) for at in LENGTHS]


def row(model: str, tokens: int) -> Row:
    """One of them."""
    implied_s = implied_prefill_s(model, tokens)
    modelled_s = None
    if model in PROFILES:
        modelled_s = load_profile(PROFILES[model]).prefill_ns(tokens, tokens) / 1e9
    return Row(
        model,
        tokens,
        load_layout(model).bytes_at(tokens),
        PHI_KV_GBPS[model][LENGTHS.index(tokens)],
        round(implied_s, 4),
        None if modelled_s is None else round(modelled_s, 4),
        None if modelled_s is None else round(implied_s - modelled_s, 4),
        None if modelled_s is None else round(implied_s / modelled_s, 2),
    )


def table(found: list[Row]) -> str:
    """As Markdown."""
    lines = [
        "| model | tokens | KV, MiB | phi_kv, Gbps | implied prefill, s | aiconfigurator, s | more, s | ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        own = "- | - | -" if one.modelled_s is None else f"{one.modelled_s:.3f} | {one.more_s:.3f} | {one.ratio:.2f}"
        lines.append(
            f"| {one.model} | {one.tokens} | {one.kv_bytes / 2**20:.1f} | {one.phi_kv_gbps:.2f} | {one.implied_s:.3f}"
            f" | {own} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table; with --json write the figures, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = rows()
    print(table(found))
    for tokens in LENGTHS:
        ratios = [one.ratio for one in found if one.tokens == tokens and one.ratio is not None]
        more = [one.more_s for one in found if one.tokens == tokens and one.more_s is not None]
        print(
            f"{tokens} tokens: the paper's times are {min(ratios):.2f} to {max(ratios):.2f} of aiconfigurator's, "
            f"{min(more):.2f} to {max(more):.2f} s more"
        )
    if options.json:
        profiles = {name: load_profile(name).source for name in PROFILES.values()}
        report = {
            "paper": "arXiv 2604.15039, Table 3",
            "profiles": profiles,
            "rows": [{key: value for key, value in asdict(one).items() if value is not None} for one in found],
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
