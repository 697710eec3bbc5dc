"""What a plan file says: model, traffic, clusters, links, prices, objectives. Small frozen parameters, defaults
included.

It knows names, types, defaults and what each setting means (the descriptions are the JSON Schema's). It does not know
YAML, lines, nor which combinations make sense: that is `planreader`. Words are those of the topology file.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from prfaas.config.topology import Name
from prfaas.config.units import Bandwidth, Duration, Size, Timeout

Text = Annotated[str, Meta(min_length=1)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 30)]
NodePrice = Annotated[float, Meta(ge=0.01, le=1e7)]
"""Never 0: what costs nothing can be had without end, and there is nothing to compare."""
LinePrice = Annotated[float, Meta(ge=0, le=1000)]


class LogNormal(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"):
    """Uncached lengths are log-normal, cut to a range."""

    mu: Annotated[float, Meta(ge=0, le=20, description="Mean of the natural logarithm of tokens.")]
    sigma: Annotated[float, Meta(gt=0, le=5, description="Standard deviation of that logarithm.")]
    least: Annotated[Tokens, Meta(description="No prompt is shorter.")] = 1
    most: Annotated[Tokens, Meta(description="No prompt is longer.")] = 131072


class Trace(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="trace"):
    """Lengths, hits and answers from recorded requests, Mooncake's JSON Lines."""

    file: Annotated[Text, Meta(description="The trace, `.jsonl` or `.jsonl.gz`: a path relative to this file.")]
    block_tokens: Annotated[int, Meta(ge=1, le=1 << 16, description="Tokens that one of its hash ids stands for.")] = (
        512
    )
    cache_bytes: Annotated[
        Size | None, Meta(description="Prefix cache that its requests share. Left out: boundless.")
    ] = field(name="cache", default=None)
    hits: Annotated[bool, Meta(description="Count prefix hits; false: every token is computed.")] = True


class Traffic(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked."""

    lengths: Annotated[LogNormal | Trace, Meta(description="How many tokens of a prompt are not cached.")]
    output: Annotated[Tokens | None, Meta(description="Tokens of an answer. Left out: the trace's own mean.")] = None
    rate: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(description="Requests a second that come. Left out: not judged."),
    ] = None


class PlanCluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Equal nodes in one fast network."""

    kind: Annotated[
        Literal["pd", "prfaas"],
        Meta(description="`pd`: serves requests end to end. `prfaas`: prefill nodes only."),
    ]
    profile: Annotated[
        Text,
        Meta(
            description="How fast a node is: a built-in profile, or a file: a path with a slash, relative to this one."
        ),
    ]
    nodes: Annotated[int, Meta(ge=1, le=100_000, description="Its nodes, whatever their role.")]
    gpus: Annotated[int, Meta(ge=1, le=4096, description="Accelerators a node.")] = 8
    price: Annotated[NodePrice | None, Meta(description="Of a node for an hour, in any one currency.")] = None
    decode_batch: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 20)] | None,
        Meta(description="Of a pd cluster: sequences a decode node runs at once. Left out: what `slo.tpot` allows."),
    ] = None
    kv_memory_bytes: Annotated[
        Size | None,
        Meta(description="Of a pd cluster: memory for KV of one node, which bounds the batch. Left out: no bound."),
    ] = field(name="kv_memory", default=None)
    share: Annotated[
        Annotated[float, Meta(gt=0, le=1)] | None,
        Meta(
            description="Of a pd cluster: its part of all requests. Left out in all: by their nodes, so a node more "
            "also draws traffic."
        ),
    ] = None


class PlanLink(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directed path from a PrfaaS cluster to a PD cluster."""

    source: Annotated[Name, Meta(description="The cluster that sends.")] = field(name="from")
    target: Annotated[Name, Meta(description="The cluster that receives.")] = field(name="to")
    bandwidth_bps: Annotated[Bandwidth, Meta(description="Of the line, such as 100Gbps.")] = field(name="bandwidth")
    rtt_ns: Annotated[
        Duration, Meta(description="Round trip, such as 20ms. Not in any figure, goes into the topology.")
    ] = field(name="rtt", default_factory=lambda: Duration(5 * 10**6))
    price: Annotated[LinePrice | None, Meta(description="Of a GB (10^9 bytes) that crosses it.")] = None


class Objectives(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What users are promised."""

    ttft_p90_ns: Annotated[
        Timeout | None, Meta(description="Time to first token that nine in ten meet; prefill time alone is judged.")
    ] = field(name="ttft_p90", default=None)
    tpot_ns: Annotated[
        Timeout | None,
        Meta(
            description="Time of each further token, such as 25ms: decides the decode batch, judges one that is given."
        ),
    ] = field(name="tpot", default=None)


class Compare(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the sensitivity tables try."""

    output: Annotated[tuple[Tokens, ...], Meta(description="Tokens of an answer.")] = (256, 512, 1024, 2048, 4096)
    bandwidth_bps: Annotated[
        tuple[Bandwidth, ...], Meta(description="Of all links together. Left out: parts of what there is.")
    ] = field(name="bandwidth", default=())


class PlanFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a plan is made from."""

    model: Annotated[
        Text,
        Meta(description="A name that `prfaas model` knows, or a config.json or its directory, relative to this file."),
    ]
    kv_dtype: Annotated[
        Literal["bf16", "fp8"] | None, Meta(description="Of rows in the KV cache. Left out: the model's own.")
    ] = None
    traffic: Annotated[Traffic, Meta(description="What is asked.")]
    clusters: Annotated[dict[Name, PlanCluster], Meta(min_length=2, description="The clusters by name.")]
    links: Annotated[tuple[PlanLink, ...], Meta(min_length=1, description="The links between them.")]
    slo: Annotated[Objectives, Meta(description="What users are promised.")] = Objectives()
    compare: Annotated[Compare, Meta(description="What the sensitivity tables try.")] = Compare()
    notes: Annotated[tuple[Text, ...], Meta(description="What readers of the answer should know.")] = ()

    def of_kind(self, kind: Literal["pd", "prfaas"]) -> dict[str, PlanCluster]:
        """The clusters of one kind, in file order."""
        return {name: cluster for name, cluster in self.clusters.items() if cluster.kind == kind}

    def link(self, source: str, target: str) -> PlanLink | None:
        """The link between two clusters, or None."""
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)
