"""From a node's settings to its engine. Each engine is imported only where it computes: torch takes seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from prfaas.config import topology as settings
from prfaas.config.topology import EmulatedEngine, Topology, TransformersEngine, VllmEngine
from prfaas.core.errors import ConfigError, InvariantError
from prfaas.engine.base import Engine, Limits
from prfaas.model.profile import Profile
from prfaas.model.profilefile import load_profile
from prfaas.model.text import Text
from prfaas.transport.stream.transport import StreamTransport

UNBOUNDED_TOKENS = 1 << 30
"""KV tokens of an engine whose memory the node bounds."""
QUARTERS = 4
LONGEST = 1 << 18
"""Context of an emulated model, tokens, unless the topology says another."""


@dataclass(frozen=True, slots=True)
class Built:
    """An engine, which is not started, and what a node's server answers because of it. `prefill_ns`: how long it takes,
    (tokens, ns) rising, where that is known beforehand."""

    engine: Engine
    doors: Sequence[web.RouteDef] = ()
    prefill_ns: Sequence[tuple[int, int]] = ()


def engine_of(
    topology: Topology, node: settings.Node, directory: Path, text: Text, transport: StreamTransport
) -> Built:
    """The engine of `node`, whose KV moves by `transport` (which faults may cut). Raises ConfigError."""
    match node.engine:
        case TransformersEngine():
            return Built(_transformers(topology, node.engine, directory))
        case EmulatedEngine():
            return _emulated(topology, node.engine, text, transport)
        case VllmEngine():
            raise InvariantError("vLLM is a program of its own")


def check_engines(topology: Topology) -> None:
    """Raises ConfigError for what only the engines' own files can tell: profiles that there are not, or broken ones."""
    nodes = (node for cluster in topology.clusters.values() for node in cluster.nodes)
    for profile in sorted({node.engine.profile for node in nodes if isinstance(node.engine, EmulatedEngine)}):
        load_profile(profile)


def _transformers(topology: Topology, wanted: TransformersEngine, directory: Path) -> Engine:
    from prfaas.engine.transformers.engine import TransformersEngine as Transformers

    return Transformers(
        directory,
        kv_blocks=memory_blocks(wanted),
        chunk_tokens=wanted.chunk_tokens,
        threads=wanted.threads or os.cpu_count() or 1,
        device=wanted.device,
        dtype=wanted.dtype,
        max_model_len=topology.limits.max_model_len,
        max_sequences=wanted.max_sequences,
        block_tokens=wanted.block_tokens,
    )


def _emulated(topology: Topology, wanted: EmulatedEngine, text: Text, transport: StreamTransport) -> Built:
    from prfaas.engine.emulated.derive import Letters
    from prfaas.engine.emulated.doors import fault_routes
    from prfaas.engine.emulated.engine import EmulatedEngine as Emulated
    from prfaas.engine.emulated.faults import Faults
    from prfaas.engine.emulated.layouts import layout_of

    printable = text.printable()
    if not printable:
        raise ConfigError(f"{topology.model}: its tokenizer has no token for a single letter; expected another model")

    def cut() -> None:
        for connection in transport.connections:
            connection.reset()

    faults = Faults(wanted.faults, cut=cut)
    limits, profile = emulated_limits(topology, wanted, text.vocab_size), load_profile(wanted.profile)
    engine = Emulated(
        layout_of(wanted.layout, wanted.bytes_scale),
        limits,
        profile,
        Letters(printable, min(text.stop_ids, default=printable[-1])),
        time_scale=wanted.time_scale,
        overlap=wanted.overlap,
        chunk_tokens=wanted.chunk_tokens,
        faults=faults,
    )
    return Built(engine, fault_routes(faults), told_times(profile, wanted.time_scale, limits.max_model_len))


def told_times(profile: Profile, time_scale: float, longest: int) -> list[tuple[int, int]]:
    """A profile's prefill times as a node tells them: four points an octave, up to `longest` tokens. Nothing where no
    time passes."""
    if not time_scale:
        return []
    octaves = range(QUARTERS * longest.bit_length())
    lengths = sorted({min(longest, round(2 ** (at / QUARTERS))) for at in octaves} | {longest})
    return [(tokens, round(profile.prefill_ns(tokens, tokens) * time_scale)) for tokens in lengths]


def emulated_limits(topology: Topology, wanted: EmulatedEngine, vocab_size: int) -> Limits:
    """What an emulated engine takes, before its memory is looked at."""
    blocks = memory_blocks(wanted)
    return Limits(
        max_model_len=min(topology.limits.max_model_len or LONGEST, blocks * wanted.block_tokens),
        max_sequences=wanted.max_sequences,
        vocab_size=vocab_size,
        block_tokens=wanted.block_tokens,
        kv_blocks=blocks,
    )


def memory_blocks(wanted: TransformersEngine | EmulatedEngine) -> int:
    """KV blocks of an engine: as many as it was given, or more than any memory holds."""
    return wanted.kv_blocks or UNBOUNDED_TOKENS // wanted.block_tokens
