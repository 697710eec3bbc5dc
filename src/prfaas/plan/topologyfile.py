"""A topology of emulated nodes like the one that was planned, small enough for one machine.

It knows what must be scaled so that the same things bind: nodes (shares kept), time, bytes, and with them the links. It
writes the format of `config.topology`, by hand, so that people can read and change it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from prfaas.config.units import Bandwidth, Duration
from prfaas.core.errors import ConfigError
from prfaas.model.hf.load import load_layout
from prfaas.plan.inputs import Inputs, grouped
from prfaas.plan.plan import Plan

MOST_NODES = 16
TIME_SCALE = 0.1
BYTES_SCALE = 1 / 192
"""At this one the widths of `paper-1t` stay whole, or nearly."""
STAND_IN = "paper-1t"
LAYOUTS = ("paper-1t", "dense", "window", "hybrid")
"""What emulated nodes can make, as in `config.topology`."""


def write_topology_file(plan: Plan, path: Path) -> None:
    """Write it, whole or not at all. Raises ConfigError when that is not possible."""
    text, part = topology_text(plan), path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; expected a file to write the topology to") from None


def topology_text(plan: Plan) -> str:
    """The file: the exact threshold design at its best."""
    return "\n".join(_lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    inputs, best = plan.inputs, plan.exact.prfaas
    layout, bytes_scale = _layout(inputs)
    counts = _scaled([*(r.nodes for r in best.site.remotes), *best.n_p, *best.n_d])
    width, homes = len(inputs.remotes), len(inputs.homes)
    remotes = dict(zip(inputs.remotes, counts[:width], strict=True))
    n_p = dict(zip(inputs.homes, counts[width : width + homes], strict=True))
    n_d = dict(zip(inputs.homes, counts[width + homes :], strict=True))
    whole = sum(cluster.nodes for cluster in inputs.said.clusters.values())
    kept, bytes_part = f"{whole} nodes as {sum(counts)} emulated ones", f"{1 / BYTES_SCALE:.0f}"
    yield f"# Written by `prfaas plan`: {kept}. A second of a profile takes {TIME_SCALE:g} s,"
    yield f"# a byte of KV in {bytes_part} is made, and links are as much thinner, so that what binds there binds here."
    yield f"# Rates are {1 / TIME_SCALE:g} times the plan's, times the part of the nodes that is kept."
    if layout != inputs.said.model:
        yield f"# {inputs.said.model} is not emulated: {layout} stands in, with as many bytes for the mean prompt."
    yield ""
    yield "model: emulated"
    yield ""
    yield "clusters:"
    for name, cluster in inputs.said.clusters.items():
        engine = (
            f"{{kind: emulated, profile: {json.dumps(cluster.profile)}, layout: {layout}, time_scale: {TIME_SCALE:g}, "
            f"bytes_scale: {bytes_scale:.9g}"
        )
        yield f"  {name}:"
        yield f"    kind: {cluster.kind}"
        yield "    nodes:"
        if cluster.kind == "prfaas":
            yield from _nodes(f"{name}-", "prefill", remotes[name], engine)
        else:
            yield from _nodes(f"{name}-p", "prefill", n_p[name], engine)
            batch = min(inputs.batches[name], 4096)
            yield from _nodes(f"{name}-d", "decode", n_d[name], f"{engine}, max_sequences: {batch}")
    yield ""
    yield "links:"
    for link in inputs.said.links:
        part = remotes[link.source] / inputs.said.clusters[link.source].nodes
        bps = link.bandwidth_bps * part * BYTES_SCALE / TIME_SCALE
        rtt = Duration(round(link.rtt_ns * TIME_SCALE / 1e3) * 1000)
        yield (
            f"  - {{from: {link.source}, to: {link.target}, bandwidth: {Bandwidth(max(1, _three(bps))).text()}, "
            f"rtt: {rtt.text()}, emulate: true}}"
        )
    yield ""
    yield "policy:"
    yield "  kind: threshold"
    yield f"  threshold: {max(1, best.threshold or 0)}"
    yield ""
    yield "limits:"
    yield f"  max_model_len: {_longest(inputs)}"


def _nodes(prefix: str, role: str, count: int, engine: str) -> Iterator[str]:
    """Equal nodes: the first says what the engine is, the others refer to it."""
    anchor = f"{prefix.rstrip('-')}-engine"
    for at in range(1, count + 1):
        if at == 1:
            yield f"      - name: {prefix}1"
            yield f"        role: {role}"
            yield f"        engine: &{anchor} {engine}}}"
        else:
            yield f"      - {{name: {prefix}{at}, role: {role}, engine: *{anchor}}}"


def _layout(inputs: Inputs) -> tuple[str, float]:
    """An emulated layout, and the scale at which it makes `BYTES_SCALE` of the model's bytes."""
    if inputs.said.model in LAYOUTS and inputs.said.kv_dtype is None:
        return inputs.said.model, BYTES_SCALE
    mean = max(1, round(inputs.workload.lengths.mean))
    ratio = inputs.kv_bytes(mean) / grouped(load_layout(STAND_IN))(mean)
    return STAND_IN, min(1.0, BYTES_SCALE * ratio)


def _scaled(counts: Sequence[int]) -> list[int]:
    """At most about `MOST_NODES` in the same proportions; what there is stays at least one."""
    factor = min(1.0, MOST_NODES / sum(counts))
    return [max(1, round(count * factor)) if count else 0 for count in counts]


def _three(value: float) -> int:
    """To three digits."""
    return int(float(f"{value:.3g}"))


def _longest(inputs: Inputs) -> int:
    """Tokens of the longest prompt and answer, in whole thousands of 1024."""
    workload = inputs.workload
    longest = max(workload.lengths.tops[-1], *(context for rows in workload.rows for _, context, _ in rows))
    return -(-int(longest + workload.output + 1) // 1024) * 1024
