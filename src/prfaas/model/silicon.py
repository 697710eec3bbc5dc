"""Profiles from aiconfigurator: times that it sums from kernels measured on real accelerators.

    pip install 'prfaas[aiconfigurator]'

aiconfigurator-core (NVIDIA, Apache-2.0) brings its data along; nothing is fetched. What it predicts is the computing of
one step: no scheduling, tokenizing or HTTP is in it, so that a served prompt takes longer. It knows which questions to
ask and how answers become a profile file; only `load` imports aiconfigurator.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Protocol

from prfaas.config.units import Timeout
from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import DecodePoint, DecodeTable, PrefillPoint, PrefillTable, ProfileFile
from prfaas.model.rising import raised

PACKAGE = "aiconfigurator-core"
HOW = "pip install 'prfaas[aiconfigurator]'"
BACKENDS = ("sglang", "vllm", "trtllm")
MOST_TEXT = 300
"""Characters of an error of theirs."""
GRAIN_NS = 1000
"""Times are written in whole microseconds."""


class Oracle(Protocol):
    """What predicts, in ms."""

    def prefill_ms(self, tokens: int, cached: int) -> float:
        """A prompt of `tokens`, of which the first `cached` need not be computed."""

    def decode_ms(self, batch: int, context: int) -> float:
        """A step of `batch` sequences of `context` tokens."""


@dataclass(frozen=True, slots=True)
class Node:
    """One engine instance: which model, on what, how it is spread. `version` None: the newest whole data of `backend`.

    `attention_dp` times `tp` must be `moe_tp` times `moe_ep`, for models with experts.
    """

    model: str
    system: str
    backend: str
    version: str | None = None
    tp: int = 1
    pp: int = 1
    attention_dp: int = 1
    moe_tp: int = 1
    moe_ep: int = 1

    @property
    def gpus(self) -> int:
        """Accelerators of it."""
        return self.tp * self.pp * self.attention_dp

    def text(self) -> str:
        """`MiniMaxAI/MiniMax-M2.5 on 8 h200_sxm (tp 8, moe_ep 8)`."""
        spread = {
            "tp": self.tp,
            "pp": self.pp,
            "attention_dp": self.attention_dp,
            "moe_tp": self.moe_tp,
            "moe_ep": self.moe_ep,
        }
        said = ", ".join(f"{name} {count}" for name, count in spread.items() if count > 1)
        return f"{self.model} on {self.gpus} {self.system}" + (f" ({said})" if said else "")


@dataclass(frozen=True, slots=True)
class Points:
    """Which points a profile is to have: tokens and sequences. `cached` without 0, which is always there."""

    lengths: Sequence[int] = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
    cached: Sequence[int] = (8192, 32768, 131072)
    batches: Sequence[int] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    contexts: Sequence[int] = (1024, 4096, 16384, 32768, 65536, 131072)


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the data go: the longest prompt, cached prefix and decode context whose attention was measured, tokens.

    None: not known.
    """

    prompt: int | None = None
    cached: int | None = None
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Silicon:
    """An oracle, what it is (name and versions) and how far its data go."""

    oracle: Oracle
    what: str
    reach: Reach = Reach()


def silicon_profile(node: Node, silicon: Silicon, points: Points, name: str, made: date) -> ProfileFile:
    """The profile that `silicon` predicts for `node`. Raises ConfigError when it cannot."""
    with _spoken(node):
        prefills = {
            (cached, length): silicon.oracle.prefill_ms(cached + length, cached) * 1e6
            for cached in (0, *points.cached)
            for length in points.lengths
        }
        decodes = {
            (batch, context): silicon.oracle.decode_ms(batch, context) * 1e6
            for batch in points.batches
            for context in points.contexts
        }
    grids = raised(prefills, across=True), raised(decodes, across=True)
    moved = [
        max(abs(new[at] - old[at]) / old[at] for at in old) for new, old in zip(grids, (prefills, decodes), strict=True)
    ]
    return ProfileFile(
        name=name,
        source=f"{silicon.what}: {node.text()}; sums of measured kernels, without what serving adds",
        date=made,
        prefill=PrefillTable(
            basis="modelled",
            note=_note("prompts", silicon.reach.prompt, moved[0]) + _prefixes(silicon.reach.cached, points.cached),
            points=tuple(
                PrefillPoint(uncached=length, cached=cached, time_ns=_whole(ns))
                for (cached, length), ns in grids[0].items()
            ),
        ),
        decode=DecodeTable(
            basis="modelled",
            note=_note("contexts", silicon.reach.context, moved[1]) + " Whether it fits in memory was not asked.",
            points=tuple(
                DecodePoint(batch=batch, context=context, time_ns=_whole(ns))
                for (batch, context), ns in grids[1].items()
            ),
        ),
    )


def load(node: Node) -> Silicon:
    """aiconfigurator for `node`. Raises ConfigError: not installed, or what it does not know."""
    try:
        engine = import_module("aiconfigurator_core.sdk.engine")
        common = import_module("aiconfigurator_core.sdk.common")
        systems = Path(str(import_module("aiconfigurator_core").__file__)).parent / "systems"
    except ImportError as error:
        raise ConfigError(f"{PACKAGE} is not installed ({error}); expected: {HOW}") from None
    _known(
        "system",
        node.system,
        sorted(path.stem for path in systems.glob("*.yaml") if (systems / "data" / path.stem).is_dir()),
    )
    _known("backend", node.backend, BACKENDS)
    if not Path(node.model).is_dir():
        # A name that it does not know it would look for on the internet.
        _known("model", node.model, sorted(common.DefaultHFModels))
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    with _spoken(node):
        version = engine._literal_backend_version(node.system, node.backend, node.version, None, None)
        handle = engine.EngineHandle.compile(
            node.model,
            node.system,
            node.backend,
            backend_version=version,
            tp_size=node.tp,
            pp_size=node.pp,
            attention_dp_size=node.attention_dp,
            moe_tp_size=node.moe_tp,
            moe_ep_size=node.moe_ep,
        )
        names = [op[0] for op in handle.run_static_per_op(batch_size=1, isl=1024, osl=2)[0]]
    family = "mla" if any("mla" in name for name in names) else "attention"
    return Silicon(
        _Handle(handle),
        f"{PACKAGE} {metadata.version(PACKAGE)}, {node.backend} {version}",
        _reach(systems / "data" / node.system / family / node.backend / version),
    )


class _Handle:
    """aiconfigurator's engine as an oracle."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def prefill_ms(self, tokens: int, cached: int) -> float:
        """See Oracle."""
        return float(self._handle.predict_prefill_latency(1, tokens, cached))

    def decode_ms(self, batch: int, context: int) -> float:
        """See Oracle."""
        return float(self._handle.predict_decode_latency(batch, context, 2))


def _reach(directory: Path) -> Reach:
    """How far the attention tables in `directory` go."""
    parquet = import_module("pyarrow.parquet")

    def most(pattern: str, measure: Callable[[Any], int]) -> int | None:
        tables = [parquet.read_table(path, columns=["isl", "step"]) for path in sorted(directory.glob(pattern))]
        return max((measure(table) for table in tables if table.num_rows), default=None)

    return Reach(
        most("context_*_perf.parquet", lambda table: max(table.column("isl").to_pylist())),
        most("context_*_perf.parquet", lambda table: max(table.column("step").to_pylist())),
        most("generation_*_perf.parquet", lambda table: max(table.column("step").to_pylist()) + 1),
    )


def _note(what: str, reach: int | None, moved: float) -> str:
    said = (
        f"How long {what} its data have is not known."
        if reach is None
        else f"Attention was measured for {what} of up to {reach} tokens; beyond, aiconfigurator extrapolates."
    )
    return said + (f" Moved by up to {moved:.1%} so as not to fall." if moved >= 0.0005 else "")


def _prefixes(reach: int | None, cached: Sequence[int]) -> str:
    if not cached or reach is None or reach >= max(cached):
        return ""
    return " No cached prefix was measured." if reach == 0 else f" Cached prefixes were measured up to {reach} tokens."


def _whole(ns: float) -> Timeout:
    return Timeout(max(GRAIN_NS, round(ns / GRAIN_NS) * GRAIN_NS))


def _known(what: str, name: str, names: Sequence[str]) -> None:
    if name in names:
        return
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    few = f"one of {', '.join(names)}" if len(names) <= 20 else "one that aiconfigurator knows, or a directory"
    raise ConfigError(f"{what} {name!r}: " + (f"did you mean {close[0]}?" if close else f"expected {few}"))


@contextlib.contextmanager
def _spoken(node: Node) -> Iterator[None]:
    """aiconfigurator's errors, which are of many kinds, in one line."""
    try:
        yield
    except Exception as error:
        said = " ".join(str(error).split()) or type(error).__name__
        said = said if len(said) <= MOST_TEXT else f"{said[:MOST_TEXT]}..."
        raise ConfigError(f"aiconfigurator, {node.text()}: {said}") from None
