"""From a topology file to a checked `Topology`, and back.

It knows the file's two uses: written by people, and written by `prfaas up` for its child programs with every port and
directory filled in. Both are the same format. Every fault is one line: `FILE:LINE: path: what is wrong; expected ...`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from prfaas.config.checks import problems
from prfaas.config.complaint import convert, explain, written
from prfaas.config.document import read_document
from prfaas.config.kinds import with_kinds
from prfaas.config.topology import Cluster, EmulatedEngine, Node, Topology
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError

DEFAULT_PORT = 8000
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says instead of the file. `port` is the first gateway's; others get the next ones."""

    model: str | None = None
    port: int | None = None


def read_topology(path: Path, overrides: Overrides = Overrides()) -> Topology:
    """The topology in `path`, checked. Raises ConfigError."""
    document = read_document(path)
    value = with_kinds(document.value)
    try:
        topology: Topology = convert(value, Topology)
    except msgspec.ValidationError as error:
        raise document.error(*explain(error, value, Topology)) from None
    topology = _overridden(_located(topology, path.parent), overrides)
    for where, what in problems(topology):
        raise document.error(where, what)
    return topology


def write_topology(topology: Topology, path: Path) -> None:
    """Write `topology` for `read_topology`, readable by the owner only. Raises OSError."""
    value = msgspec.to_builtins(topology, enc_hook=written)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        yaml.safe_dump(_given(value), file, sort_keys=False)


def is_directory_name(model: str) -> bool:
    """Whether `model` names a directory, not an entry of the catalog."""
    return "/" in model or model.startswith("~")


def _located(topology: Topology, base: Path) -> Topology:
    """With file names made absolute: they are relative to the topology file."""
    security = topology.security

    def located(node: Node) -> Node:
        engine = node.engine
        if isinstance(engine, EmulatedEngine) and is_directory_name(engine.profile):
            return replace(node, engine=replace(engine, profile=_absolute(engine.profile, base)))
        return node

    def all_located(cluster: Cluster) -> Cluster:
        return replace(cluster, nodes=tuple(located(node) for node in cluster.nodes))

    return replace(
        topology,
        clusters={name: all_located(cluster) for name, cluster in topology.clusters.items()},
        model=_absolute(topology.model, base) if is_directory_name(topology.model) else topology.model,
        security=replace(
            security,
            secret_file=_absolute(security.secret_file, base),
            api_keys_file=_absolute(security.api_keys_file, base),
        ),
    )


def _absolute(name: str | None, base: Path) -> Any:
    return None if name is None else os.path.abspath(base / Path(name).expanduser())


def _overridden(topology: Topology, overrides: Overrides) -> Topology:
    if overrides.model is not None:
        model = overrides.model
        model = _absolute(model, Path.cwd()) if is_directory_name(model) else model
        topology = replace(topology, model=model, served_name=None)
    first, clusters = overrides.port or DEFAULT_PORT, dict(topology.clusters)
    for at, (name, gateway) in enumerate(topology.of_kind("pd").items()):
        if gateway.listen is None or overrides.port is not None:
            if first + at > LAST_PORT:
                raise ConfigError(f"port {first + at} for the gateway of {name}; expected at most {LAST_PORT}")
            host = gateway.listen.host if gateway.listen else "127.0.0.1"
            clusters[name] = replace(gateway, listen=Endpoint.at(host, first + at))
    return replace(topology, clusters=clusters)


def _given(value: Any) -> Any:
    """Without the settings that are None: in the file, those are left out."""
    if isinstance(value, dict):
        return {key: _given(item) for key, item in value.items() if item is not None}
    return [_given(item) for item in value] if isinstance(value, list | tuple) else value
