"""Settings of nodes of kind vllm that vLLM, or our connector in it, would refuse once it runs, for the model at hand.

It knows topologies and a model's config.json; it does not import vLLM. What depends on more (quantised KV, scaled
positions, several ranks) is left to vLLM: nothing is refused here that would work.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prfaas.config.checks import Problem
from prfaas.config.topology import Cluster, Node, Topology, VllmEngine
from prfaas.config.units import Size
from prfaas.core.cache.layout import Part, PartKind
from prfaas.core.errors import ConfigError
from prfaas.model.hf.config import read_config
from prfaas.model.hf.load import load_layout


def vllm_misfits(topology: Topology, directory: Path) -> Iterator[Problem]:
    """Place in the file, and `what is wrong; expected ...`."""
    for name, cluster in topology.clusters.items():
        for at, node in enumerate(cluster.nodes):
            if isinstance(node.engine, VllmEngine):
                yield from _engine(("clusters", name, "nodes", at, "engine"), node.engine, topology, directory)
                if _takes_kv(topology, name, cluster, node):
                    yield from _landing(topology, node.engine, directory)


def _engine(where: tuple[str | int, ...], engine: VllmEngine, topology: Topology, directory: Path) -> Iterator[Problem]:
    config = read_config(directory / "config.json")
    longest = topology.limits.max_model_len
    made_for = config.integer("max_position_embeddings", default=0, least=0)
    scaled = '"factor"' in (directory / "config.json").read_text(errors="replace") or _says(engine, "--hf-overrides")
    if longest and made_for and longest > made_for and not scaled:
        yield ("limits", "max_model_len"), f"got {longest}; expected at most {made_for}, which the model was made for"
    # MLA has kernels of its own.
    if engine.device == "cpu" and (engine.block_tokens or 32) % 32 and not config.has("kv_lora_rank"):
        what = f"got {engine.block_tokens}; expected a multiple of 32, as vLLM's attention on CPUs does"
        yield (*where, "block_tokens"), what
    memory = engine.kv_memory_bytes
    if longest and memory and not _says(engine, "--tensor-parallel-size", "-tp"):
        needed = sum(part.bytes_at(longest) for part in _rows(directory, engine) if part.kind is PartKind.TOKENS)
        if needed > memory:
            what = f"got {memory.text()}; expected {needed} bytes or more, which limits.max_model_len tokens have"
            yield (*where, "kv_memory"), what


def _landing(topology: Topology, engine: VllmEngine, directory: Path) -> Iterator[Problem]:
    longest, room = topology.limits.max_model_len, topology.limits.landing_buffer_bytes
    needed = sum(part.bytes_at(longest - 1) for part in _rows(directory, engine)) if longest else 0
    if needed > room:
        what = (
            f"got {Size(room).text()}; expected {needed} bytes or more: KV of a prompt of limits.max_model_len tokens"
        )
        yield ("limits", "landing_buffer"), what


def _takes_kv(topology: Topology, name: str, cluster: Cluster, node: Node) -> bool:
    """Whether our connector brings KV to `node`."""
    assert isinstance(node.engine, VllmEngine)
    inside = node.engine.within == "prfaas" and bool(cluster.of_role("prefill"))
    outside = node.engine.connector == "prfaas" and any(link.target == name for link in topology.links)
    return node.role == "decode" and (inside or outside)


def _rows(directory: Path, engine: VllmEngine) -> list[Part]:
    """What attention keeps, in the dtype that `engine` has; nothing where config or arguments do not tell. (The dtype
    of recurrent states is vLLM's choice, and they are small.)"""
    try:
        parts = load_layout(str(directory)).parts
    except ConfigError:
        return []
    if _says(engine, "--kv-cache-dtype"):
        return []
    rows = [part for part in parts if part.kind is not PartKind.STATE]
    return rows if engine.dtype == "auto" else [replace(part, dtype=engine.dtype) for part in rows]


def _says(engine: VllmEngine, *flags: str) -> bool:
    """Whether its arguments have one of `flags`."""
    return any(word.replace("_", "-").split("=", 1)[0] in flags for word in engine.arguments)
