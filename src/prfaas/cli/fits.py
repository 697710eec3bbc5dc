"""Before anything starts: settings that are wrong only for the model at hand, with their place in the topology file.

It knows topologies, a model's config.json and how much KV memory holds; it does not know torch. What it cannot tell (a
family whose layout only a run shows) the node finds out when it starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from prfaas.cli.engines import emulated_limits, memory_blocks
from prfaas.cli.vllmfits import vllm_misfits
from prfaas.config.checks import Problem
from prfaas.config.topology import EmulatedEngine, Topology, TransformersEngine
from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.errors import ConfigError
from prfaas.engine.base import Limits
from prfaas.engine.emulated.layouts import layout_of
from prfaas.engine.node.capacity import within_memory
from prfaas.model.hf.config import read_config
from prfaas.model.hf.convention import TRANSFORMERS
from prfaas.model.hf.load import load_layout

Found = TypeVar("Found")
UNSAID = 1 << 20
"""What a model that does not say how long its context is, is taken to be made for."""


def check_fits(topology: Topology, directory: Path | None) -> None:
    """Raises ConfigError, which says where, for what the model in `directory` or the memory of a node does not allow.
    Without a directory (it is not fetched yet) only for what needs none."""
    for where, what in misfits(topology, directory):
        raise ConfigError(what, where)


def had(topology: Topology, resolve: Callable[[str], Found]) -> Found:
    """What `resolve` makes of the topology's model. Raises ConfigError, which says that it is the model's."""
    try:
        return resolve(topology.model)
    except ConfigError as error:
        raise ConfigError(str(error), ("model",)) from None


def misfits(topology: Topology, directory: Path | None) -> Iterator[Problem]:
    """See `check_fits`."""
    transformers = [
        node.engine
        for cluster in topology.clusters.values()
        for node in cluster.nodes
        if isinstance(node.engine, TransformersEngine)
    ]
    made_for = _made_for(directory) if transformers and directory else UNSAID
    asked = topology.limits.max_model_len
    if directory is not None and asked is not None and asked > made_for:
        yield ("limits", "max_model_len"), f"got {asked}; expected at most {made_for}, which the model was made for"
        return
    for name, cluster in topology.clusters.items():
        for at, node in enumerate(cluster.nodes):
            limits, layout = _limits(topology, node.engine, directory, made_for)
            memory = getattr(node.engine, "kv_budget_bytes", None)
            if limits is None or layout is None or memory is None:
                continue
            try:
                within_memory(limits, layout, memory)
            except ConfigError as error:
                yield ("clusters", name, "nodes", at, "engine", "kv_memory"), str(error)
    if directory is not None:
        yield from vllm_misfits(topology, directory)


def _limits(
    topology: Topology, engine: Any, directory: Path | None, made_for: int
) -> tuple[Limits | None, KVLayout | None]:
    match engine:
        case EmulatedEngine():
            return emulated_limits(topology, engine, 1), layout_of(engine.layout, engine.bytes_scale)
        case TransformersEngine() if directory is not None:
            blocks = memory_blocks(engine)
            longest = topology.limits.max_model_len or min(made_for, blocks * engine.block_tokens)
            limits = Limits(longest, engine.max_sequences, 1, engine.block_tokens, blocks)
            return limits, _layout(directory, engine.dtype)
    return None, None


def _made_for(directory: Path) -> int:
    """As `engine.transformers.loaded` reads it."""
    return read_config(directory / "config.json").integer("max_position_embeddings", default=0, least=0) or UNSAID


def _layout(directory: Path, dtype: str) -> KVLayout | None:
    """The layout with rows of `dtype`, which the engine computes in; None for a family whose config does not tell."""
    try:
        layout = load_layout(str(directory), convention=TRANSFORMERS)
    except ConfigError:
        return None
    rows = (replace(part, dtype=dtype) if part.kind is not PartKind.STATE else part for part in layout.parts)
    return KVLayout(layout.revision, tuple(rows))
