"""From a topology of emulated nodes, with a trace, to what is simulated: its nodes, links, scaled times and bytes.

It knows how an emulated node stands for a profile and a layout. Time is the topology's own: a second of a profile takes
`time_scale` seconds, as it does under `prfaas up`. It makes the plan that the topology stands for, so that threshold,
Lambda_max and all the rest are the planner's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prfaas.config.document import Where, read_document
from prfaas.config.reader import read_topology
from prfaas.config.topology import Cluster, EmulatedEngine, Topology
from prfaas.core.errors import ConfigError
from prfaas.model.hf.load import load_layout
from prfaas.model.profilefile import load_profile
from prfaas.plan.designs import Design, Designs
from prfaas.plan.inputs import Inputs, grouped
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import PlanCluster, PlanFile, PlanLink, Trace, Traffic
from prfaas.plan.trace import read_trace, with_hits
from prfaas.plan.workload import from_asked
from prfaas.sim.fromplan import Planned, setup_of

LAYOUT = "paper-1t"
"""The emulated layout that is a model's; the others are small, for tests of transfers."""
BINS = 384


def is_topology(path: Path) -> bool:
    """Whether the file in `path` lists nodes, as topologies do; a plan counts them. Raises ConfigError."""
    value = read_document(path, "a plan file or a topology").value
    clusters = value.get("clusters") if isinstance(value, dict) else None
    if not isinstance(clusters, dict):
        return False
    return any(isinstance(one, dict) and isinstance(one.get("nodes"), list) for one in clusters.values())


def planned_topology(path: Path, trace: Path | None) -> Planned:
    """The topology in `path`, all of whose nodes are emulated, under the requests of `trace`, whose rows are checked as
    those of a plan file are. Raises ConfigError."""
    if trace is None:
        raise ConfigError(f"{path}: a topology says nothing of requests; expected --trace too, or a plan file")
    topology = read_topology(path)
    engines = {name: _engine(path, name, cluster) for name, cluster in topology.clusters.items()}
    bytes_scale = _same(path, [(name, one.bytes_scale) for name, one in engines.items()], "bytes_scale")
    lengths = Trace(file=str(trace.absolute()))
    _check_blocks(path, topology, lengths.block_tokens)
    said = PlanFile(
        model=LAYOUT,
        traffic=Traffic(lengths=lengths),
        clusters={name: _cluster(cluster, engines[name]) for name, cluster in topology.clusters.items()},
        links=tuple(
            PlanLink(source=one.source, target=one.target, bandwidth_bps=one.bandwidth_bps, rtt_ns=one.rtt_ns)
            for one in topology.links
        ),
    )
    kv_bytes = grouped(load_layout(LAYOUT))
    asked = tuple(with_hits(read_trace(trace, lengths.block_tokens), lengths.block_tokens, None))
    inputs = Inputs(
        said,
        asked,
        from_asked(asked, None, BINS),
        lambda tokens: round(kv_bytes(tokens) * bytes_scale),
        {name: load_profile(one.profile).scaled(one.time_scale) for name, one in engines.items()},
        {name: engines[name].max_sequences for name in said.of_kind("pd")},
    )
    plan = Plan(inputs)
    design = _design(plan, topology)
    return Planned(plan, setup_of(inputs, design), design.rate, design.threshold or 0)


def _design(plan: Plan, topology: Topology) -> Design:
    """The topology's own nodes, at the best threshold."""
    designs = Designs(plan.site, "exact")
    n_p = tuple(len(topology.clusters[name].of_role("prefill")) for name in plan.inputs.homes)
    return designs.of_shape("prfaas", designs.search.with_nodes(n_p))


def _engine(path: Path, name: str, cluster: Cluster) -> EmulatedEngine:
    """What all nodes of a cluster are."""
    document = read_document(path)
    first = cluster.nodes[0].engine
    for at, node in enumerate(cluster.nodes):
        engine: Any = node.engine
        where: Where = ("clusters", name, "nodes", at, "engine")
        if not isinstance(engine, EmulatedEngine):
            raise document.error(where, "not emulated; expected `kind: emulated` in every node, to be simulated")
        if (engine.profile, engine.time_scale) != (first.profile, first.time_scale):  # type: ignore[union-attr]
            raise document.error(where, "another profile or time_scale than the first node's; expected equal nodes")
        if engine.layout != LAYOUT:
            raise document.error((*where, "layout"), f"got {engine.layout!r}; expected {LAYOUT}")
        if not engine.time_scale:
            raise document.error((*where, "time_scale"), "got 0, so no time passes; expected more")
    assert isinstance(first, EmulatedEngine)
    return first


def _check_blocks(path: Path, topology: Topology, block_tokens: int) -> None:
    """A hash id of the trace stands for whole blocks of every node."""
    document = read_document(path)
    for name, cluster in topology.clusters.items():
        for at, node in enumerate(cluster.nodes):
            engine: Any = node.engine
            if block_tokens % engine.block_tokens:
                what = (
                    f"got {engine.block_tokens}; expected a divisor of {block_tokens}, the tokens of a trace's hash id"
                )
                raise document.error(("clusters", name, "nodes", at, "engine", "block_tokens"), what)


def _cluster(cluster: Cluster, engine: EmulatedEngine) -> PlanCluster:
    kind = cluster.kind
    batch = engine.max_sequences if kind == "pd" else None
    return PlanCluster(
        kind=kind, profile=f"{engine.profile} x{engine.time_scale:g}", nodes=len(cluster.nodes), decode_batch=batch
    )


def _same(path: Path, values: list[tuple[str, float]], key: str) -> float:
    for name, value in values:
        if value != values[0][1]:
            raise ConfigError(f"{path}: {key}: got {value:g} in {name}, {values[0][1]:g} before; expected one for all")
    return values[0][1]
