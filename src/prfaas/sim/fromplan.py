"""From a plan to what is simulated: the nodes of one of its designs, its links, times, bytes and prompts.

It knows plans and setups; it computes no rate and no threshold of its own: those are the planner's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

from prfaas.core.cache.spec import PoolSpec, block_bytes
from prfaas.core.errors import LocalError
from prfaas.model.hf.load import load_layout
from prfaas.plan.designs import Design
from prfaas.plan.inputs import Inputs
from prfaas.plan.plan import Plan
from prfaas.plan.planfile import LogNormal, Trace
from prfaas.plan.trace import read_trace
from prfaas.sim.arrivals import SECOND_NS, Arrival, Draw, lognormal_draw
from prfaas.sim.costs import flat_step, prefill_time, remembered
from prfaas.sim.prefixes import CacheSetup, HostSetup
from prfaas.sim.setup import ClusterSetup, LinkSetup, Setup


@dataclass(frozen=True)
class Planned:
    """A plan, ready to be simulated. `bound`: the exact Lambda_max of its own design, requests a second; `threshold`:
    that design's."""

    plan: Plan
    setup: Setup
    bound: float
    threshold: int

    @property
    def inputs(self) -> Inputs:
        """What the plan rests on."""
        return self.plan.inputs

    @cached_property
    def rows(self) -> tuple[Arrival, ...]:
        """The requests of the trace that is its traffic, in the order of their times; none where it is no trace."""
        lengths = self.inputs.said.traffic.lengths
        if not isinstance(lengths, Trace):
            return ()
        output = self.inputs.said.traffic.output
        found = [
            Arrival(
                round(row.timestamp * 1e6),
                row.input_length,
                output or max(1, row.output_length),
                row.hash_ids[: row.input_length // lengths.block_tokens] if lengths.hits else (),
            )
            for row in read_trace(Path(lengths.file))
        ]
        found.sort(key=lambda row: row.at_ns)
        first = found[0].at_ns
        return tuple(row._replace(at_ns=row.at_ns - first) for row in found)

    @property
    def recorded_rate(self) -> float:
        """Requests a second of the trace."""
        return (len(self.rows) - 1) * SECOND_NS / max(1, self.rows[-1].at_ns)

    def draw(self, chance: Random) -> Draw:
        """Lengths by chance: the file's distribution, or rows of its trace."""
        lengths, output = self.inputs.said.traffic.lengths, self.inputs.said.traffic.output
        if isinstance(lengths, LogNormal):
            assert output is not None
            return lognormal_draw(chance, lengths.mu, lengths.sigma, lengths.least, lengths.most, output)
        rows = self.rows

        def drawn() -> tuple[int, int]:
            row = rows[chance.randrange(len(rows))]
            return row.tokens, row.output

        return drawn

    def replay(self, rate: float | None) -> Iterator[Arrival]:
        """The trace's requests, at its own times or stretched to `rate` a second."""
        stretch = 1.0 if rate is None else self.recorded_rate / rate
        return (Arrival(round(row.at_ns * stretch), row.tokens, row.output, row.blocks) for row in self.rows)


def planned(plan: Plan, design: Design | None = None) -> Planned:
    """`plan` with the nodes of `design`, None: of its own, threshold and exact."""
    own = plan.exact.prfaas
    return Planned(plan, setup_of(plan.inputs, design or own), (design or own).rate, max(0, own.threshold or 0))


def setup_of(inputs: Inputs, design: Design) -> Setup:
    """The nodes of `design`."""
    clusters = []
    for name, cluster, home, n_p, n_d in zip(
        inputs.homes, inputs.homes.values(), design.site.homes, design.n_p, design.n_d, strict=True
    ):
        profile = inputs.profiles[name]
        batch, memory = inputs.batches[name], cluster.kv_memory_bytes
        flat = flat_step(profile, batch)
        cost = prefill_time(profile)
        step = profile.decode_step_ns
        clusters.append(ClusterSetup(name, n_p, cost, n_d, batch, memory, step, flat, home.share))
    remotes = list(inputs.remotes) if design.site.remotes else []
    for name in remotes:
        clusters.append(ClusterSetup(name, inputs.remotes[name].nodes, prefill_time(inputs.profiles[name])))
    names = [cluster.name for cluster in clusters]
    links = [
        LinkSetup(names.index(link.source), names.index(link.target), int(link.bandwidth_bps), int(link.rtt_ns))
        for link in inputs.said.links
        if link.source in remotes
    ]
    cache = _cache(inputs)
    if cache is not None:  # prefixes are copied both ways
        links += [replace(link, source=link.target, target=link.source) for link in links]
    return Setup(tuple(clusters), tuple(links), remembered(inputs.kv_bytes), cache)


BLOCK_TOKENS = 512
"""Of a cache that no trace has to do with."""


def with_host(setup: Setup, planned: Planned, host_bytes: int, bps: int) -> Setup:
    """`setup` with a host tier of so many bytes to each cluster's cache."""
    if setup.cache is None:
        raise LocalError("host: got a host tier of no cache; expected a cache too")
    said = planned.inputs.said
    each = block_bytes(load_layout(said.model, said.kv_dtype), setup.cache.spec.block_tokens)
    return replace(setup, cache=replace(setup.cache, host=HostSetup(max(1, host_bytes // each), each, bps)))


def with_cache(planned: Planned, cache_bytes: int | None) -> Setup:
    """Its setup, with a cache of so many bytes in each cluster; None: as it is."""
    if cache_bytes is None:
        return planned.setup
    said = planned.inputs.said
    block = said.traffic.lengths.block_tokens if isinstance(said.traffic.lengths, Trace) else BLOCK_TOKENS
    layout = load_layout(said.model, said.kv_dtype)
    setup, there = planned.setup, {(link.source, link.target) for link in planned.setup.links}
    back = [replace(link, source=link.target, target=link.source) for link in setup.links]
    links = setup.links + tuple(link for link in back if (link.source, link.target) not in there)
    cache = CacheSetup(PoolSpec.of_layout(layout, block), max(1, cache_bytes // block_bytes(layout, block)))
    return replace(setup, links=links, cache=cache)


def _cache(inputs: Inputs) -> CacheSetup | None:
    """A cache of each cluster, as the trace's settings say: so large, or large enough for all of it."""
    trace = inputs.said.traffic.lengths
    if not isinstance(trace, Trace) or not trace.hits:
        return None
    layout = load_layout(inputs.said.model, inputs.said.kv_dtype)
    spec = PoolSpec.of_layout(layout, trace.block_tokens)
    if trace.cache_bytes is not None:
        return CacheSetup(spec, max(1, trace.cache_bytes // block_bytes(layout, trace.block_tokens)))
    blocks = 0
    seen: set[int] = set()
    for row in read_trace(Path(trace.file)):
        seen.update(row.hash_ids)
        blocks += 3 * spec.snapshot_blocks
    return CacheSetup(spec, blocks + 2 * len(seen) + (1 << 16))
