"""Settings that come in kinds: which kind it is when the file does not say.

It knows where such settings are; what each kind has is in `topology`.
"""

from __future__ import annotations

from typing import Any

DEFAULT_ENGINE = "transformers"


def with_kinds(topology: Any) -> Any:
    """`topology`, a file's plain value, with `kind` in every node's engine. What is no topology is left as it is."""
    if not isinstance(topology, dict) or not isinstance(topology.get("clusters"), dict):
        return topology
    return {**topology, "clusters": {name: _cluster(cluster) for name, cluster in topology["clusters"].items()}}


def _cluster(cluster: Any) -> Any:
    if not isinstance(cluster, dict) or not isinstance(cluster.get("nodes"), list):
        return cluster
    return {**cluster, "nodes": [_node(node) for node in cluster["nodes"]]}


def _node(node: Any) -> Any:
    if not isinstance(node, dict) or not isinstance(node.get("engine"), dict) or "kind" in node["engine"]:
        return node
    return {**node, "engine": {"kind": DEFAULT_ENGINE, **node["engine"]}}
