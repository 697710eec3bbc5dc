"""From a plan file to the numbers of a `Site`: reads profiles, layout and trace, and makes tables of them.

It knows names and where numbers come from; what is made of them is `designs`'.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from prfaas.config.document import Document
from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ConfigError, InvariantError
from prfaas.core.throughput.equations import decode_rate
from prfaas.core.throughput.site import Home, Remote, Site
from prfaas.model.hf.load import load_layout
from prfaas.model.profile import Profile
from prfaas.model.profilefile import load_profile
from prfaas.plan.planfile import LogNormal, PlanCluster, PlanFile, Trace
from prfaas.plan.trace import Asked, read_trace, with_hits, without_hits
from prfaas.plan.workload import Workload, from_asked, from_lognormal

FINE, MIDDLE, COARSE = 2048, 384, 256
"""Bins of length: with one PrfaaS cluster, with several, and for what is computed many times over."""
COARSE_ROWS = 4
MOST_BATCH = 1 << 14

T = TypeVar("T")
KvBytes = Callable[[int], int]
"""S_kv: bytes of a sequence of so many tokens."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan rests on. `asked`: the trace's requests, if there is one. `batches`: sequences a decode node
    runs at once, of each pd cluster."""

    said: PlanFile
    asked: tuple[Asked, ...]
    workload: Workload
    kv_bytes: KvBytes
    profiles: dict[str, Profile]
    batches: dict[str, int]

    @property
    def remotes(self) -> dict[str, PlanCluster]:
        """The PrfaaS clusters, in file order."""
        return self.said.of_kind("prfaas")

    @property
    def homes(self) -> dict[str, PlanCluster]:
        """The PD clusters, in file order."""
        return self.said.of_kind("pd")

    def prefill_s(self, cluster: str, workload: Workload) -> tuple[float, ...]:
        """Mean prefill seconds of each bin on a node of the cluster."""
        profile = self.profiles[cluster]
        return workload.table(lambda uncached, context: profile.prefill_ns(uncached, max(uncached, context)) / 1e9)

    def decode_rate(self, cluster: str, workload: Workload) -> float:
        """Requests a second that one decode node of a pd cluster ends."""
        return decode_rate(self.batches[cluster], self.step_ns(cluster, workload) / 1e9, workload.output)

    def step_ns(self, cluster: str, workload: Workload | None = None) -> int:
        """Of a decode node of a pd cluster: TPOT. `workload`: another one than the file's."""
        context = _decode_context(workload or self.workload)
        return self.profiles[cluster].decode_step_ns(self.batches[cluster], context)

    def meets_tpot(self, cluster: str) -> bool:
        """Whether a pd cluster's step is within `slo.tpot`; true without one."""
        most = self.said.slo.tpot_ns
        return most is None or self.step_ns(cluster) <= most

    def site(self, workload: Workload | None = None) -> Site:
        """The plain numbers. `workload`: another one than the file's."""
        workload = workload or self.workload
        named = {cluster.profile: name for name, cluster in self.said.clusters.items()}
        of_profile = {profile: self.prefill_s(name, workload) for profile, name in named.items()}
        tables = {name: of_profile[cluster.profile] for name, cluster in self.said.clusters.items()}
        whole = sum(cluster.nodes for cluster in self.homes.values())
        return Site(
            workload.lengths,
            workload.table(lambda uncached, _: self.kv_bytes(uncached)),
            tuple(Remote(cluster.nodes, tables[name]) for name, cluster in self.remotes.items()),
            tuple(
                Home(
                    cluster.nodes,
                    tables[name],
                    self.decode_rate(name, workload),
                    cluster.share or cluster.nodes / whole,
                    tuple(self._bandwidth(source, name) for source in self.remotes),
                )
                for name, cluster in self.homes.items()
            ),
        )

    def extrapolated(self, cluster: str) -> float:
        """The share of requests whose prefill time no measured points lie around."""
        profile = self.profiles[cluster]
        outside = self.workload.table(lambda u, c: float(profile.prefill(u, max(u, c)).extrapolated))
        return sum(w * out for w, out in zip(self.workload.lengths.weights, outside, strict=True))

    def decode_extrapolated(self, cluster: str) -> bool:
        """Whether no measured points lie around the decode step of a pd cluster."""
        return self.profiles[cluster].decode_step(self.batches[cluster], _decode_context(self.workload)).extrapolated

    def coarse(self) -> Inputs:
        """The same with fewer bins, for what is computed many times over."""
        bins = COARSE if len(self.remotes) == 1 else COARSE // 2
        return replace(self, workload=_workload(self.said, self.asked, bins, COARSE_ROWS))

    def _bandwidth(self, source: str, target: str) -> float:
        link = self.said.link(source, target)
        return float(link.bandwidth_bps) if link else 0.0


def read_inputs(said: PlanFile, document: Document) -> Inputs:
    """What `said` names, read. Raises ConfigError with the line that names it."""
    layout = _named(document, ("model",), lambda: load_layout(said.model, said.kv_dtype))
    profiles = {name: _profile(said, name, document) for name in said.clusters}
    kv_bytes = grouped(layout)
    bins = FINE if len(said.of_kind("prfaas")) == 1 else MIDDLE
    asked = _named(document, ("traffic", "lengths"), lambda: _asked(said, kv_bytes))
    workload = _named(document, ("traffic", "lengths"), lambda: _workload(said, asked, bins))
    batches = {name: _batch(said, name, profiles[name], kv_bytes, workload, document) for name in said.of_kind("pd")}
    return Inputs(said, asked, workload, kv_bytes, profiles, batches)


def grouped(layout: KVLayout) -> KvBytes:
    """`layout.bytes_at` for many lengths: parts that weigh the same are asked once."""
    alike = Counter(replace(part, layer=0, name="") for part in layout.parts)
    return lambda length: sum(count * part.bytes_at(length) for part, count in alike.items())


def _asked(said: PlanFile, kv_bytes: KvBytes) -> tuple[Asked, ...]:
    """The trace's requests; none when lengths are not from a trace."""
    lengths = said.traffic.lengths
    if isinstance(lengths, LogNormal):
        return ()
    path = Path(lengths.file)
    if not lengths.hits:
        return tuple(without_hits(read_trace(path)))
    rows = read_trace(path, lengths.block_tokens)
    return tuple(with_hits(rows, lengths.block_tokens, _blocks(lengths, kv_bytes)))


def _workload(said: PlanFile, asked: tuple[Asked, ...], bins: int, rows: int | None = None) -> Workload:
    lengths, output = said.traffic.lengths, said.traffic.output
    if isinstance(lengths, LogNormal):
        assert output is not None
        try:
            return from_lognormal(lengths.mu, lengths.sigma, lengths.least, lengths.most, output, bins)
        except InvariantError as error:
            raise ConfigError(f"{error}; expected another range") from None
    return from_asked(asked, output, bins, rows)


def _blocks(trace: Trace, kv_bytes: KvBytes) -> int | None:
    """Blocks that the cache holds: what grows with length counts, states of one length do not."""
    if trace.cache_bytes is None:
        return None
    long = 1 << 20
    return int(trace.cache_bytes // max(1, kv_bytes(long + trace.block_tokens) - kv_bytes(long)))


def _batch(
    said: PlanFile, name: str, profile: Profile, kv_bytes: KvBytes, workload: Workload, document: Document
) -> int:
    """The batch that is given, or the largest whose step is within `slo.tpot`; never more than memory holds."""
    cluster = said.clusters[name]
    context = _decode_context(workload)
    most = MOST_BATCH
    if cluster.kv_memory_bytes is not None:
        most = cluster.kv_memory_bytes // max(1, kv_bytes(context))
        if not most:
            what = f"holds no sequence of {context} tokens, {kv_bytes(context) / 1e9:.1f}GB; expected more"
            raise document.error(("clusters", name, "kv_memory"), what)
    if cluster.decode_batch is not None:
        if cluster.decode_batch > most:
            what = (
                f"got {cluster.decode_batch}; expected at most {most}, which `kv_memory` holds at {context} tokens each"
            )
            raise document.error(("clusters", name, "decode_batch"), what)
        return cluster.decode_batch
    assert said.slo.tpot_ns is not None
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if profile.decode_step_ns(middle, context) <= said.slo.tpot_ns:
            low = middle
        else:
            high = middle - 1
    if not low:
        step = profile.decode_step_ns(1, context) / 1e6
        what = f"got {said.slo.tpot_ns.text()}, but one sequence on {name} takes {step:.3g}ms a token; expected more"
        raise document.error(("slo", "tpot"), what)
    return low


def _decode_context(workload: Workload) -> int:
    """Tokens of a sequence half way through its answer."""
    return round(workload.mean_context + workload.output / 2)


def _profile(said: PlanFile, name: str, document: Document) -> Profile:
    return _named(document, ("clusters", name, "profile"), lambda: load_profile(said.clusters[name].profile))


def _named(document: Document, where: tuple[str | int, ...], read: Callable[[], T]) -> T:
    try:
        return read()
    except ConfigError as error:
        raise document.error(where, str(error)) from None
