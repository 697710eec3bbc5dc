"""What this connector reads: the topology file, the environment, and vLLM's `kv_connector_extra_config`.

It knows which keys there are; it does not know vLLM's own configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prfaas.config.environment import Environment, read_environment
from prfaas.config.reader import read_topology
from prfaas.config.topology import Node, Topology, VllmEngine
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName

KEYS = frozenset({"topology", "cluster", "node", "control", "data", "recompute_below", "revision"})


@dataclass(frozen=True, slots=True)
class Settings:
    """`control`, `data`: where rank 0 listens. `recompute_below`: prompts shorter than this are computed here when a
    load fails. `revision`: instead of the checkpoint's own, "" for that."""

    topology: Topology
    environment: Environment
    cluster: ClusterName
    node: Node
    control: Endpoint
    data: Endpoint
    recompute_below: int = 0
    revision: str = ""

    @property
    def host(self) -> str:
        """The host that peers dial."""
        return self.node.advertise or self.data.host


def read_settings(extra: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Raises ConfigError that names the key and what was expected."""
    if unknown := sorted(set(extra) - KEYS):
        raise ConfigError(f"kv_connector_extra_config: unknown {unknown[0]!r}; expected {', '.join(sorted(KEYS))}")
    file = Path(_text(extra, "topology"))
    topology = read_topology(file)
    name, wanted = _text(extra, "cluster"), _text(extra, "node")
    if name not in topology.clusters:
        raise ConfigError(f"{file}: no cluster is called {name!r}; expected one of {', '.join(topology.clusters)}")
    node = topology.clusters[name].node(wanted)
    if node is None:
        names = ", ".join(one.name for one in topology.clusters[name].nodes)
        raise ConfigError(f"{file}: cluster {name} has no node {wanted!r}; expected one of {names}")
    said = node.engine.recompute_below if isinstance(node.engine, VllmEngine) else 0
    below = extra.get("recompute_below", said)
    if not isinstance(below, int) or below < 0:
        raise ConfigError(f"kv_connector_extra_config.recompute_below: got {below!r}; expected a number of tokens")
    return Settings(
        topology,
        read_environment(topology, environ),
        ClusterName(name),
        node,
        _listener(extra, "control", getattr(node, "control_listen", None), node),
        _listener(extra, "data", node.data_listen, node),
        below,
        str(extra.get("revision", "")),
    )


def _text(extra: Mapping[str, Any], key: str) -> str:
    value = extra.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"kv_connector_extra_config has no {key!r}; expected {_WHAT[key]}")
    return value


_WHAT = {"topology": "the topology file", "cluster": "a cluster of that file", "node": "a node of that cluster"}


def _listener(extra: Mapping[str, Any], key: str, listed: Endpoint | None, node: Node) -> Endpoint:
    if key in extra:
        try:
            return Endpoint.parse(extra[key])
        except ValueError as error:
            raise ConfigError(f"kv_connector_extra_config.{key}: {error}") from None
    if listed is None:
        raise ConfigError(f"node {node.name} has no `{key}_listen`; expected HOST:PORT")
    return listed
