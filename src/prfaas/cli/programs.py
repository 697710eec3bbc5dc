"""The programs that make up a topology: one per head and per node, and how each is started.

It knows commands and endpoints; it does not know processes. All programs of a topology read the same file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from prfaas.cli.ports import free_ports
from prfaas.config import checks
from prfaas.config.topology import Cluster, Node, Topology, TransformersEngine, VllmEngine
from prfaas.config.units import Endpoint


@dataclass(frozen=True, slots=True)
class Program:
    """One process to be: `name` for people, `health` the endpoint that answers GET /health when it is ready."""

    name: str
    kind: Literal["gateway", "prefill-service", "node"]
    cluster: str
    node: str | None
    health: Endpoint


CommandFactory = Callable[[Program], list[str]]


def prfaas_command(file: Path) -> CommandFactory:
    """How each program is started from the topology in `file`."""

    def command(program: Program) -> list[str]:
        # -P: modules that happen to lie in the working directory are not ours.
        start = [sys.executable, "-P", "-m", "prfaas.cli.main", program.kind, str(file), "--cluster", program.cluster]
        return [*start, "--node", program.node] if program.node is not None else start

    return command


def programs_of(topology: Topology) -> list[Program]:
    """The programs of a localised `topology`, nodes first."""
    nodes = [
        Program(node.name, "node", name, node.name, _reached(node.listen))
        for name, cluster in topology.clusters.items()
        for node in cluster.nodes
    ]
    heads = [
        Program(name, "gateway" if cluster.kind == "pd" else "prefill-service", name, None, _reached(cluster.listen))
        for name, cluster in topology.clusters.items()
    ]
    return nodes + heads


def localised(topology: Topology, model: Path) -> Topology:
    """`topology` with all that `up` decides: model directory, its name to clients, free ports, threads.

    Raises ConfigError when there are no free ports.
    """
    taken = list(checks.listeners(topology))
    nodes = [node for cluster in topology.clusters.values() for node in cluster.nodes]
    given = [cluster.listen for cluster in topology.clusters.values()]
    given += [endpoint for node in nodes for endpoint in node.listeners.values()]
    given += [cluster.events_listen for cluster in topology.clusters.values() if _tells(cluster)]
    given += [
        node.replay_listen
        for cluster in topology.clusters.values()
        for node in cluster.nodes
        if _replays(cluster, node)
    ]
    wanted = sum(endpoint is None for endpoint in given)
    free = iter(free_ports(wanted, {endpoint.port for _, endpoint, _ in taken}))
    threads = max(1, len(_cores()) // len(nodes))
    shares = iter(_shares(_cores(), len(nodes)))

    def listen(given: Endpoint | None) -> Endpoint:
        return given if given is not None else Endpoint.at("127.0.0.1", next(free))

    def local(node: Node, replays: bool) -> Node:
        engine = node.engine
        share = next(shares)
        if isinstance(engine, TransformersEngine) and engine.threads is None:
            engine = replace(engine, threads=threads)
        if isinstance(engine, VllmEngine) and engine.device == "cpu" and engine.cores is None:
            engine = replace(engine, cores=share)
        listeners = node.listeners | ({"replay_listen": node.replay_listen} if replays else {})
        return replace(node, engine=engine, **{key: listen(given) for key, given in listeners.items()})

    clusters = {
        name: replace(
            cluster,
            listen=listen(cluster.listen),
            events_listen=listen(cluster.events_listen) if _tells(cluster) else cluster.events_listen,
            nodes=tuple(local(node, _replays(cluster, node)) for node in cluster.nodes),
        )
        for name, cluster in topology.clusters.items()
    }
    return replace(topology, model=str(model), served_name=topology.public_name, clusters=clusters)


def _tells(cluster: Cluster) -> bool:
    """Whether a node of `cluster` tells of its cache unasked, or that it keeps none. (vLLM does where the file says so:
    it costs it time.)"""
    return any(not isinstance(node.engine, VllmEngine) for node in cluster.nodes)


def _replays(cluster: Cluster, node: Node) -> bool:
    """Whether it is of vLLM's and tells of its cache, so that it is asked again what was missed."""
    return cluster.events_listen is not None and isinstance(node.engine, VllmEngine)


def _reached(listen: Endpoint | None) -> Endpoint:
    assert listen is not None, "localised topologies name every listener"
    if not listen.wildcard:
        return listen
    return Endpoint.at("::1" if listen.host == "::" else "127.0.0.1", listen.port)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def _shares(cores: list[int], nodes: int) -> list[str]:
    """Cores for each of `nodes`, in turn where there are too few: "0,1", "2,3"."""
    each = max(1, len(cores) // nodes)
    return [",".join(str(cores[(at * each + i) % len(cores)]) for i in range(each)) for at in range(nodes)]
