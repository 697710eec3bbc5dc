"""What layer-by-layer hand-over is worth: TTFT of a long prompt, prefilled far away with and without it, and at home.

Real processes (`prfaas up`), real sockets, a paced and delayed line; compute time from the paper's profiles (emulated
nodes: H200 far away, H20 at home), scaled: a 64th of the bytes, twice the time. Two lines: the paper's 100 Gbit/s by
the same scale, and one that is thinner than what the last chunk makes. One run.

The exposed transfer time is what the prefill node saw between the end of its computing and LANDED
(`prfaas_stage_seconds{stage="drain"}`). Its lower bound is the bytes that became final last, over the line, plus a
round trip. On a line that is thinner than what comes, more than that must be left when the last layer is done:
`line_bound_s` is what a line still needs that was never idle while it had something to send.

    python -m benchmarks.serve [--tokens 8192] [--repeat 5] [--json FILE] [--chart FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from tests.e2e.system import System

from prfaas.core.cache.layout import PartKind
from prfaas.engine.emulated.layouts import layout_of
from prfaas.model.profilefile import load_profile

TIME_SCALE, BYTES_SCALE, CHUNK = 2.0, 1 / 64, 2048
WIDE_BPS, THIN_BPS, RTT_S = int(100e9 * BYTES_SCALE / TIME_SCALE), 150_000_000, 0.040
LAYOUT, PROFILE = "paper-1t", "paper-h200"


@dataclass(frozen=True, slots=True)
class Way:
    """One way to serve the prompt: `threshold` decides where, `overlap` how KV leaves, `bps` how fast."""

    name: str
    threshold: int
    overlap: bool
    bps: int


WAYS = (
    Way("layer by layer", 1000, True, WIDE_BPS),
    Way("all at the end", 1000, False, WIDE_BPS),
    Way("layer by layer, thin line", 1000, True, THIN_BPS),
    Way("all at the end, thin line", 1000, False, THIN_BPS),
    Way("local prefill", 1_000_000, True, WIDE_BPS),
)


def topology(way: Way) -> str:
    """Two clusters of emulated nodes."""

    def engine(profile: str) -> str:
        return (
            f"{{kind: emulated, profile: {profile}, layout: {LAYOUT}, time_scale: {TIME_SCALE}, "
            f"bytes_scale: {BYTES_SCALE}, chunk_tokens: {CHUNK}, overlap: {str(way.overlap).lower()}}}"
        )

    return f"""
model: emulated
clusters:
  home:
    kind: pd
    nodes:
      - {{name: home-prefill, role: prefill, engine: {engine("paper-h20")}}}
      - {{name: home-decode, role: decode, engine: {engine("paper-h20")}}}
  far:
    kind: prfaas
    nodes:
      - {{name: far-prefill, role: prefill, engine: {engine(PROFILE)}}}
links:
  - {{from: far, to: home, bandwidth: {way.bps // 10**6}Mbps, rtt: {RTT_S * 1000:.0f}ms, emulate: true}}
policy: {{kind: threshold, threshold: {way.threshold}}}
limits: {{max_model_len: 200000}}
"""


def stage_s(system: System, program: str, stage: str) -> float:
    return system.metric(program, "prfaas_stage_seconds_sum", stage=stage)


def ask(system: System, tokens: list[int]) -> float:
    """Seconds to the first token of a streamed answer."""
    body = {"model": "emulated", "prompt": tokens, "max_tokens": 1, "temperature": 0, "stream": True}
    began = time.perf_counter()
    with httpx2.stream("POST", system.url + "/v1/completions", json=body, timeout=120) as answer:
        assert answer.status_code == 200, answer.read()
        for _ in answer.iter_raw():
            return time.perf_counter() - began
    raise AssertionError("an empty stream")


def measure(way: Way, tokens: int, repeat: int) -> dict[str, Any]:
    """TTFT and stages of `repeat` prompts, after one that is not counted."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "topology.yaml"
        file.write_text(topology(way))
        system = System.start(file, Path(directory), None)
        try:
            prefill = "home-prefill" if way.threshold > tokens else "far-prefill"
            ask(system, [65] * tokens)
            rows = []
            for i in range(repeat):
                computed, drained = stage_s(system, prefill, "prefill"), stage_s(system, prefill, "drain")
                ttft = ask(system, [66 + i] * tokens)
                system.settled()
                rows.append(
                    {
                        "ttft_s": ttft,
                        "prefill_s": stage_s(system, prefill, "prefill") - computed,
                        "drain_s": stage_s(system, prefill, "drain") - drained,
                    }
                )
            return {"way": way.name, "runs": rows} | {
                key: statistics.median(row[key] for row in rows) for key in ("ttft_s", "prefill_s", "drain_s")
            }
        finally:
            system.stop()


def finals(tokens: int, overlap: bool) -> list[tuple[float, int]]:
    """When bytes become final, seconds before the end of computing (negative), and how many; in order."""
    layout, length, profile = layout_of(LAYOUT, BYTES_SCALE), tokens - 1, load_profile(PROFILE)
    if not overlap:
        return [(0.0, layout.bytes_at(length))]
    found = []
    layers = layout.layers()
    for start in range(0, length, CHUNK):
        stop = min(start + CHUNK, length)
        began, ended = (profile.prefill_ns(at, at) * TIME_SCALE / 1e9 if at else 0.0 for at in (start, stop))
        for nth, layer in enumerate(layers, 1):
            size = sum(
                part.unit_bytes * (stop - start if part.kind is PartKind.TOKENS else stop == length)
                for part in layout.of_layer(layer)
            )
            found.append((began + (ended - began) * nth / len(layers), size))
    end = found[-1][0]
    return [(at - end, size) for at, size in found]


def bounds_s(tokens: int, way: Way) -> dict[str, float]:
    """The lower bounds of the exposed transfer time; see the module's docstring."""
    made = finals(tokens, way.overlap)
    free = -float("inf")  # when the line has sent what was made so far
    for at, size in made:
        free = max(free, at) + size * 8 / way.bps
    last = made[-1][1]
    return {"final_last_bytes": last, "bound_s": last * 8 / way.bps + RTT_S, "line_bound_s": free + RTT_S}


def chart(report: dict[str, Any], file: Path) -> None:
    """Bars of TTFT by way, split into computing and exposed transfer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.6), layout="constrained")
    names = [way["way"] for way in report["ways"]]
    computed = [way["prefill_s"] for way in report["ways"]]
    exposed = [way["drain_s"] for way in report["ways"]]
    rest = [max(0.0, way["ttft_s"] - way["prefill_s"] - way["drain_s"]) for way in report["ways"]]
    left = [0.0] * len(names)
    parts = (("prefill", computed, "#1d4ed8"), ("exposed transfer", exposed, "#c2410c"), ("the rest", rest, "#94a3b8"))
    for label, widths, colour in parts:
        axes.barh(names, widths, left=left, label=label, color=colour)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for y, way in enumerate(report["ways"]):
        axes.text(left[y], y, f"  {way['ttft_s']:.2f} s", va="center")
    axes.invert_yaxis()
    axes.set_xlabel("time to first token, s")
    axes.set_xlim(0, max(left) * 1.15)
    line = f"{WIDE_BPS / 1e6:.0f} Mbit/s (thin: {THIN_BPS / 1e6:.0f}), round trip {RTT_S * 1000:.0f} ms"
    axes.set_title(f"{report['tokens']} tokens, {report['kv_mib']:.1f} MiB of KV, {line}")
    axes.legend(loc="upper right")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--chart", type=Path)
    options = parser.parse_args()
    ways = []
    for way in WAYS:
        print(f"{way.name} ...", flush=True)
        found = measure(way, options.tokens, options.repeat)
        if way.threshold < options.tokens:
            found |= bounds_s(options.tokens, way)
            found["exposed_over_bound"] = found["drain_s"] / found["bound_s"]
            found["exposed_over_line_bound"] = found["drain_s"] / found["line_bound_s"]
        ways.append(found)
    overlapped, late, thin, thin_late, local = ways
    report = {
        "tokens": options.tokens,
        "bandwidth_bps": {"wide": WIDE_BPS, "thin": THIN_BPS},
        "rtt_s": RTT_S,
        "time_scale": TIME_SCALE,
        "bytes_scale": BYTES_SCALE,
        "kv_mib": layout_of(LAYOUT, BYTES_SCALE).bytes_at(options.tokens - 1) / 2**20,
        "ways": ways,
        "ratios": {
            "ttft_overlap_over_no_overlap": overlapped["ttft_s"] / late["ttft_s"],
            "ttft_overlap_over_no_overlap_thin": thin["ttft_s"] / thin_late["ttft_s"],
            "ttft_overlap_over_local": overlapped["ttft_s"] / local["ttft_s"],
            "exposed_over_bound": overlapped["exposed_over_bound"],
            "exposed_over_line_bound_thin": thin["exposed_over_line_bound"],
        },
    }
    for way in ways:
        took = f"TTFT {way['ttft_s']:.3f} s  prefill {way['prefill_s']:.3f}  exposed {way['drain_s']:.4f}"
        least = f"  at least {way['bound_s']:.4f}, {way['line_bound_s']:.4f}" if "bound_s" in way else ""
        print(f"{way['way']:<26} {took}{least}")
    for name, ratio in report["ratios"].items():
        print(f"{name:<34} {ratio:.3f}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    if options.chart:
        chart(report, options.chart)


if __name__ == "__main__":
    main()
