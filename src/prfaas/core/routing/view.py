"""What the router knows of the world: soft state, rebuilt from reports.

It knows the last report of each prefill source and decode node; it does not know how reports are got.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from prfaas.core.ids import ClusterName, LinkName, NodeName, TransferId
from prfaas.core.routing.curve import Curve


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A prefill that a head has: `tokens` of prompt, waiting or running since `since_ns` before the report."""

    transfer: TransferId
    tokens: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """Event: a cluster that can prefill for us reported, or could not be asked (`ready` 0, `trouble` says why).

    Of those who wait (`queue`, next first) and run (`busy`) some may not be listed: then `rest_waiting` and
    `rest_running` are the tokens of those. `curve`: how long a node takes; None when the head does not know either.
    `nodes`: prefill nodes that the cluster has, whether they are ready or not; None when it does not say. `copies`:
    whether they lend prefixes that they keep, and fetch those that others lend.
    """

    cluster: ClusterName
    ready: int
    waiting: int
    running: int
    max_tokens: int
    trouble: str = ""
    queue: tuple[JobSeen, ...] = ()
    busy: tuple[JobSeen, ...] = ()
    rest_waiting: int = 0
    rest_running: int = 0
    curve: Curve | None = None
    nodes: int | None = None
    copies: bool = False


@dataclass(frozen=True, slots=True)
class DecodeSeen:
    """Event: a decode node of our cluster reported, or could not be asked (`ready` False)."""

    node: NodeName
    ready: bool
    running: int
    max_tokens: int
    layout: str = ""
    ranks: int = 0
    """Of its tensor parallelism; 0 when it does not say."""


@dataclass(frozen=True, slots=True)
class DecodeLost:
    """Event: a decode node is gone (`until_ns` None), or restarted: then calls to it that began up to `until_ns` were
    given to an incarnation that is gone. `detail` is for people."""

    node: NodeName
    until_ns: int | None
    detail: str


@dataclass(frozen=True, slots=True)
class Back:
    """A link from our own cluster to another one, on which nothing but copies of prefixes goes."""

    link: LinkName
    bandwidth_bps: int | None = None
    rtt_ns: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """A cluster that can prefill for us. `home` is our own cluster; the others are PrfaaS clusters over `link`, of
    which `bandwidth_bps` (None: unknown) and round trip are what the line is meant to have. `back`: the link from ours
    to it, if there is one."""

    cluster: ClusterName
    link: LinkName
    home: bool
    bandwidth_bps: int | None = None
    rtt_ns: int = 0
    back: Back | None = None


@dataclass(slots=True)
class View:
    """Sources and decode nodes with what was last heard of them. Order of `sources` is the topology's."""

    sources: tuple[Source, ...]
    seen: dict[ClusterName, SourceSeen] = field(default_factory=dict)
    decoders: dict[NodeName, DecodeSeen] = field(default_factory=dict)
    assigned: dict[NodeName, int] = field(default_factory=dict)
    """Requests that we gave each decode node and that have not ended: fresher than any report."""
    sent: dict[ClusterName, int] = field(default_factory=dict)
    """Requests of ours that each source has yet to prefill: fresher than any report."""

    def source(self, cluster: ClusterName) -> Source:
        """The source of that name. Raises KeyError when the topology has none."""
        for source in self.sources:
            if source.cluster == cluster:
                return source
        raise KeyError(cluster)

    def ready(self, source: Source, tokens: int) -> bool:
        """Whether `source` can prefill `tokens` tokens, as far as we know."""
        seen = self.seen.get(source.cluster)
        return seen is not None and seen.ready > 0 and tokens <= seen.max_tokens

    @property
    def decodes_only(self) -> bool:
        """Whether our own cluster has no prefill nodes at all: its decode nodes compute what is not sent away."""
        return any(self.seen[s.cluster].nodes == 0 for s in self.sources if s.home and s.cluster in self.seen)
