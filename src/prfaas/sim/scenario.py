"""What a scenario file says: how requests come, what goes wrong, and how much of lines is lost.

    arrivals: {kind: bursts, factor: 3, length: 30s, every: 3m}
    loss: 0.001                        # part of every line that retransmission costs
    prefill: {chunk: 8192, prompts: 4} # in chunks, up to 4 prompts in turn
    balance: {rule: ours, every: 5m}   # nodes change roles as traffic changes
    faults:
      - {kind: link, cluster: far, target: home, at: 20m, lasts: 2m, bandwidth: 5Gbps}
      - {kind: node_down, cluster: far, node: 0, at: 20m, lasts: 5m}

It knows names, types and defaults; what they do is `world`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from prfaas.config.complaint import convert, explain
from prfaas.config.document import Document, read_document
from prfaas.config.topology import Name
from prfaas.config.units import Bandwidth, Duration, Size, Timeout
from prfaas.sim import arrivals
from prfaas.sim.arrivals import Arrival, Draw
from prfaas.sim.faults import Fault, Kind
from prfaas.sim.sessions import Sessions
from prfaas.sim.setup import Setup

Factor = Annotated[float, Meta(gt=0, le=1000)]


class Poisson(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="poisson"):
    """Independent of each other."""


class Even(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="even"):
    """At equal distances."""


class Bursts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="bursts"):
    """For `length` of each `every`, `factor` times as many as else."""

    factor: Factor = 3.0
    length_ns: Annotated[Timeout, Meta(description="Of a burst.")] = field(
        name="length", default_factory=lambda: Timeout(30 * 10**9)
    )
    every_ns: Annotated[Timeout, Meta(description="From one burst to the next.")] = field(
        name="every", default_factory=lambda: Timeout(180 * 10**9)
    )


class Mmpp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="mmpp"):
    """In turn calm and `factor` times as many, for exponential times with the means `calm` and `burst`."""

    factor: Factor = 3.0
    burst_ns: Timeout = field(name="burst", default_factory=lambda: Timeout(30 * 10**9))
    calm_ns: Timeout = field(name="calm", default_factory=lambda: Timeout(150 * 10**9))


class Diurnal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="diurnal"):
    """Up and down by the share `swing` over `period`."""

    swing: Annotated[float, Meta(ge=0, le=1)] = 0.5
    period_ns: Timeout = field(name="period", default_factory=lambda: Timeout(86400 * 10**9))


class Users(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="users"):
    """Closed-loop sessions: the rate is what comes of it. Prompts grow by the answers, and share their prefixes."""

    users: Annotated[int, Meta(ge=1, le=1 << 20, description="How many.")]
    think_ns: Annotated[Timeout, Meta(description="From an answer to the next question, on average.")] = field(
        name="think", default_factory=lambda: Timeout(30 * 10**9)
    )
    turns: Annotated[float, Meta(ge=1, description="Of a conversation, on average.")] = 5.0
    adds: Annotated[float, Meta(gt=0, description="Tokens that a turn adds besides the answer, on average.")] = 500.0


class FaultEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault."""

    kind: Kind
    cluster: Annotated[Name, Meta(description="Whose node or service it is, or the one that sends over the link.")]
    at_ns: Annotated[Duration, Meta(description="When it begins.")] = field(name="at")
    lasts_ns: Annotated[
        Timeout, Meta(description="How long it lasts; of a role change, what it costs once the node is free.")
    ] = field(name="lasts")
    node: Annotated[int, Meta(ge=0, description="Number of the node among those of its role, from 0.")] = 0
    target: Annotated[Name | None, Meta(description="Of a link: the cluster that receives.")] = None
    bps: Annotated[Bandwidth | None, Meta(description="Of a link: what it still does. Left out: nothing.")] = field(
        name="bandwidth", default=None
    )
    factor: Annotated[Factor, Meta(description="Of a slow node: times as long.")] = 2.0


class Chunked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prefill in chunks."""

    chunk: Annotated[int, Meta(ge=1, le=1 << 24, description="Tokens of a chunk.")] = 8192
    prompts: Annotated[
        int, Meta(ge=1, le=1024, description="Prompts that a prefill node holds; it computes a chunk of each in turn.")
    ] = 1


class Balanced(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes of the PD cluster change roles as traffic changes, and the threshold follows."""

    rule: Annotated[Literal["ours", "ratio"], Meta(description="ours: docs/balance.md; ratio: the paper's.")] = "ours"
    every_ns: Annotated[Timeout, Meta(description="From one look to the next.")] = field(
        name="every", default_factory=lambda: Timeout(300 * 10**9)
    )
    window_ns: Annotated[Timeout, Meta(description="How far back traffic counts.")] = field(
        name="window", default_factory=lambda: Timeout(900 * 10**9)
    )
    cost_ns: Annotated[Timeout, Meta(description="What a role change takes once the node is empty.")] = field(
        name="cost", default_factory=lambda: Timeout(120 * 10**9)
    )


class HostTier(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Host memory as a second tier of each cluster's prefix cache."""

    size: Annotated[Size, Meta(description="Of each cluster, all its nodes together.")]
    bps: Annotated[
        Bandwidth, Meta(description="What the host link of one node carries, in bits a second: 64 GB/s are 512Gbps.")
    ] = field(name="bandwidth")


class Scenario(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of it."""

    arrivals: Poisson | Even | Bursts | Mmpp | Diurnal | Users = Poisson()
    cache_bytes: Annotated[
        Size | None,
        Meta(description="Prefix cache of each cluster. Left out: as the trace says; without a trace none."),
    ] = field(name="cache", default=None)
    host: Annotated[HostTier | None, Meta(description="Left out: what a cache has no room for is lost.")] = None
    lease_ns: Annotated[
        Timeout,
        Meta(
            description="How long a cluster with a cache keeps KV that has not landed at home; then it is made again."
        ),
    ] = field(name="lease", default_factory=lambda: Timeout(600 * 10**9))
    loss: Annotated[float, Meta(ge=0, lt=1, description="Part of every line that retransmission costs.")] = 0.0
    prefill: Annotated[
        Chunked | None, Meta(description="Left out: a prefill node computes one prompt at a time, whole.")
    ] = None
    balance: Annotated[Balanced | None, Meta(description="Left out: nodes keep their roles, but for faults.")] = None
    faults: tuple[FaultEntry, ...] = ()

    def stream(self, rate: float, draw: Draw, chance: Random) -> Iterator[Arrival]:
        """Requests that come `rate` a second on average."""
        match self.arrivals:
            case Poisson():
                return arrivals.poisson(rate, draw, chance)
            case Even():
                return arrivals.even(rate, draw)
            case Bursts(factor=factor, length_ns=length, every_ns=every):
                return arrivals.bursts(rate, factor, length / 1e9, every / 1e9, draw, chance)
            case Mmpp(factor=factor, burst_ns=burst, calm_ns=calm):
                return arrivals.mmpp(rate, factor, burst / 1e9, calm / 1e9, draw, chance)
            case Diurnal(swing=swing, period_ns=period):
                return arrivals.diurnal(rate, swing, period / 1e9, draw, chance)
            case Users():
                return iter(())

    def sessions(self, block_tokens: int, most: int, draw: Draw, chance: Random) -> Sessions | None:
        """The users, if they are how requests come."""
        if not isinstance(self.arrivals, Users):
            return None
        one = self.arrivals
        return Sessions(one.users, one.think_ns / 1e9, one.turns, one.adds, block_tokens, most, draw, chance)

    def planned_faults(self) -> tuple[Fault, ...]:
        """The faults in plain values."""
        return tuple(
            Fault(
                one.kind,
                one.cluster,
                int(one.at_ns),
                int(one.at_ns) + int(one.lasts_ns),
                one.node,
                one.target or "",
                int(one.bps or 0),
                one.factor,
            )
            for one in self.faults
        )


def read_scenario(path: Path, setup: Setup) -> Scenario:
    """The scenario in `path`, for `setup`. Raises ConfigError with the line."""
    document = read_document(path, "a scenario (see `prfaas schema scenario`)")
    try:
        said: Scenario = convert(document.value, Scenario)
    except msgspec.ValidationError as error:
        raise document.error(*explain(error, document.value, Scenario)) from None
    if isinstance(said.arrivals, Bursts) and said.arrivals.length_ns >= said.arrivals.every_ns:
        raise document.error(("arrivals", "length"), "got no less than `every`; expected a shorter burst")
    if said.host is not None and said.cache_bytes is None and setup.cache is None:
        raise document.error(("host",), "got a host tier of no cache; expected `cache` too, or a trace with prefixes")
    if said.balance is not None and (why := unbalanced(setup)):
        raise document.error(("balance",), why)
    for at, fault in enumerate(said.faults):
        _check(document, at, fault, setup)
    if said.balance is None:
        _check_roles(document, said.faults, setup)
    return said


def unbalanced(setup: Setup) -> str | None:
    """Why roles cannot be balanced there."""
    if len(setup.homes) > 1:
        return f"got {len(setup.homes)} PD clusters; expected one, since one threshold is tuned"
    home = setup.clusters[setup.homes[0]]
    if not home.prefill or not home.decode:
        return f"{home.name} has {home.prefill} prefill and {home.decode} decode nodes; expected some of each role"
    return None


_OWN: dict[str, tuple[str, ...]] = {
    "node": ("node_down", "slow_node", "decode_down", "to_prefill", "to_decode"),
    "target": ("link",),
    "bandwidth": ("link",),
    "factor": ("slow_node",),
}
"""What not every fault has, and those that have it."""


def _check(document: Document, at: int, fault: FaultEntry, setup: Setup) -> None:
    names = {cluster.name: cluster for cluster in setup.clusters}

    def wrong(key: str, what: str) -> Any:
        return document.error(("faults", at, key), what)

    for key, kinds in _OWN.items():
        if key in document.value["faults"][at] and fault.kind not in kinds:
            raise wrong(key, f"a {fault.kind} fault has none; expected it of {', '.join(kinds)} only")
    if fault.cluster not in names:
        raise wrong("cluster", f"no cluster is called {fault.cluster!r}; expected one of {', '.join(names)}")
    cluster = names[fault.cluster]
    if fault.kind == "link":
        number = list(names).index(fault.cluster)
        targets = [setup.clusters[link.target].name for link in setup.links if link.source == number]
        if not targets:
            sources = dict.fromkeys(setup.clusters[link.source].name for link in setup.links)
            raise wrong("cluster", f"no link leads from {fault.cluster}; expected one of {', '.join(sources)}")
        if fault.target is None:
            raise document.error(("faults", at), f"expected a target: {', '.join(targets)}")
        if fault.target not in targets:
            raise wrong("target", f"got {fault.target!r}; expected {', '.join(targets)}")
        return
    changes = fault.kind in ("to_prefill", "to_decode")
    if changes and not (cluster.decode and cluster.prefill):
        raise wrong("cluster", f"{fault.cluster} has not nodes of both roles; expected a cluster that has")
    role = "decode" if fault.kind in ("decode_down", "to_prefill") else "prefill"
    nodes: int = getattr(cluster, role)
    if not nodes:
        some = [one.name for one in setup.clusters if getattr(one, role)]
        raise wrong("cluster", f"{fault.cluster} has no {role} nodes; expected one of {', '.join(some)}")
    if fault.node >= nodes:
        raise wrong("node", f"got {fault.node}; expected less than {nodes}, its nodes of that role")


def _check_roles(document: Document, faults: tuple[FaultEntry, ...], setup: Setup) -> None:
    """Some decode node stays, even if each that is to come comes as soon as it can."""
    decode = {cluster.name: cluster.decode for cluster in setup.clusters}
    gone: set[tuple[str, int]] = set()
    for at, fault in sorted(enumerate(faults), key=lambda one: one[1].at_ns):
        if fault.kind != "to_prefill" or (fault.cluster, fault.node) in gone:
            continue
        gone.add((fault.cluster, fault.node))
        come = sum(
            one.kind == "to_decode" and one.cluster == fault.cluster and one.at_ns + one.lasts_ns <= fault.at_ns
            for one in faults
        )
        if decode[fault.cluster] + come <= sum(name == fault.cluster for name, _ in gone):
            raise document.error(
                ("faults", at, "node"), f"got the last decode node of {fault.cluster}; expected that one stays"
            )
