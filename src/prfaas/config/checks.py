"""Which settings make sense together. Pure: a topology in, the first thing wrong out, with its place in the file.

It knows what clusters, roles and links mean to each other; it does not know YAML, lines or the environment.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from prfaas.config.document import Where
from prfaas.config.topology import Cluster, EmulatedEngine, Engine, Fault, Link, Node, Topology, VllmEngine
from prfaas.config.units import Duration, Endpoint
from prfaas.config.vllmflags import taken

EMULATED = "emulated"
"""The model without weights."""
IPV4 = re.compile(r"\d+\.\d+\.\d+\.\d+")
LONGEST_RTT = Duration.parse("10s")
"""No line on earth, nor by satellite, has a longer round trip."""

Problem = tuple[Where, str]


def problems(topology: Topology) -> Iterator[Problem]:
    """Everything wrong with `topology`: place, and `what is wrong; expected ...`."""
    for name, cluster in topology.clusters.items():
        yield from _cluster(("clusters", name), cluster)
    yield from _node_names(topology)
    yield from _engines(topology)
    if not topology.of_kind("pd"):
        yield ("clusters",), "no cluster has kind pd; expected at least one, since only a pd cluster decodes"
    for at, link in enumerate(topology.links):
        yield from _link(("links", at), link, topology)
    yield from _links_together(topology)
    yield from _listeners(topology)
    yield from _secrets(topology)


def _cluster(where: Where, cluster: Cluster) -> Iterator[Problem]:
    for at, node in enumerate(cluster.nodes):
        here = (*where, "nodes", at)
        if cluster.kind == "prfaas" and node.role == "decode":
            yield (*here, "role"), "a prfaas cluster only prefills; expected prefill, or a cluster of kind pd"
        yield from _node(here, node)
        if node.replay_listen is not None:
            yield from _replay((*here, "replay_listen"), cluster, node, node.replay_listen)
    events = cluster.events_listen
    if events is not None and ":" in (cluster.advertise or events.host):
        for node in cluster.nodes:
            if isinstance(node.engine, VllmEngine):
                what = f"vLLM ({node.name}) would listen at an IPv6 address itself; expected an IPv4 address or a name"
                yield (*where, "events_listen"), what
    if cluster.kind == "pd" and not cluster.of_role("decode"):
        yield (*where, "nodes"), "a pd cluster without a decode node; expected at least one with role: decode"


def _node(where: Where, node: Node) -> Iterator[Problem]:
    engine = node.engine
    for key in ("data_listen", "control_listen", "nixl_listen"):
        if getattr(node, key) is not None and key not in node.listeners:
            yield (*where, key), f"a node with this engine has no such listener; expected {_listed(node.listeners)}"
    if node.advertise is not None or any(at is not None and not at.loopback for at in node.listeners.values()):
        for key in unlisted(node):
            yield where, f"no `{key}`; expected HOST:PORT, since other machines are to reach this node"
    if isinstance(engine, VllmEngine):
        yield from _vllm((*where, "engine"), engine)
        return
    if engine.kv_blocks is not None and engine.kv_memory_bytes is not None:
        yield (*where, "engine", "kv_memory"), "given together with kv_blocks; expected one of them"


def _replay(where: Where, cluster: Cluster, node: Node, at: Endpoint) -> Iterator[Problem]:
    if not isinstance(node.engine, VllmEngine):
        yield where, "a node with this engine has no such listener; it says itself where it answers; expected none"
    elif cluster.events_listen is None:
        yield where, "its cluster has no `events_listen`, so it sends no KV events; expected both, or none"
    elif not IPV4.fullmatch(at.host):
        yield where, f"got {at}; expected an IPv4 address and a port, since vLLM resolves no names there"


def unlisted(node: Node) -> list[str]:
    """The listeners that `node` needs and the file does not name: `up` picks their ports, and nobody else can."""
    return [key for key, endpoint in node.listeners.items() if endpoint is None]


def _vllm(where: Where, engine: VllmEngine) -> Iterator[Problem]:
    for at, what in taken(engine.arguments):
        yield (*where, "arguments", at), what
    if engine.block_tokens is not None and engine.block_tokens % 16:
        yield (
            (*where, "block_tokens"),
            f"got {engine.block_tokens}; expected a multiple of 16, as vLLM's attention kernels do",
        )
    if engine.chunk_tokens is not None and engine.chunk_tokens < engine.max_sequences:
        what = f"got {engine.chunk_tokens}; expected {engine.max_sequences} or more: a token for each of max_sequences"
        yield (*where, "chunk_tokens"), what
    if engine.recompute_below and "prfaas" not in engine.connectors:
        yield (*where, "recompute_below"), "NixlConnector has no such setting; expected `connector: prfaas`, or none"


def _node_names(topology: Topology) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for name, cluster in topology.clusters.items():
        for at, node in enumerate(cluster.nodes):
            if node.name in seen:
                where = ("clusters", name, "nodes", at, "name")
                yield where, f"{node.name!r} is taken by a node of cluster {seen[node.name]}; expected another name"
            seen.setdefault(node.name, name)


def _engines(topology: Topology) -> Iterator[Problem]:
    """KV crosses between all nodes, so all must make the same."""
    first: tuple[str, tuple[str, ...]] | None = None
    for name, cluster in topology.clusters.items():
        for at, node in enumerate(cluster.nodes):
            where = ("clusters", name, "nodes", at, "engine")
            kv = _kv_of(node.engine)
            if topology.model == EMULATED and kv[0] != "emulated":
                yield where, f"model {EMULATED} has no weights; expected {{kind: emulated}}"
            first = first or (node.name, kv)
            if kv != first[1]:
                yield where, f"makes other KV ({', '.join(kv)}) than node {first[0]}; expected {', '.join(first[1])}"
            for nth, fault in enumerate(node.engine.faults if isinstance(node.engine, EmulatedEngine) else ()):
                yield from _fault((*where, "faults", nth), fault)


def _kv_of(engine: Engine) -> tuple[str, ...]:
    """What decides the KV that a node makes, besides the model."""
    if isinstance(engine, EmulatedEngine):
        return "emulated", f"layout {engine.layout}", f"bytes_scale {engine.bytes_scale:g}"
    if isinstance(engine, VllmEngine):
        return "vllm", f"dtype {engine.dtype}", f"connector {engine.connector}"
    return "transformers", engine.dtype


def _fault(where: Where, fault: Fault) -> Iterator[Problem]:
    if fault.do == "wrong_token" and not fault.at.startswith("decode:token"):
        yield (*where, "do"), f"no token is made at {fault.at}; expected `at: decode:token`"
    if fault.do == "corrupt" and not (fault.at.startswith("prefill:") or fault.at == "landed"):
        yield (*where, "do"), f"no KV is handed over at {fault.at}; expected a point of prefill, or landed"


def _link(where: Where, link: Link, topology: Topology) -> Iterator[Problem]:
    for key, name in (("from", link.source), ("to", link.target)):
        if name not in topology.clusters:
            yield (*where, key), f"no cluster is called {name!r}; {_which(name, topology.clusters)}"
            return
    if topology.clusters[link.source].kind == topology.clusters[link.target].kind:
        kind = topology.clusters[link.source].kind
        yield where, f"joins two {kind} clusters; expected one prfaas and one pd cluster"
    if link.rtt_ns > LONGEST_RTT:
        yield (*where, "rtt"), f"got {link.rtt_ns.text()}; expected at most {LONGEST_RTT.text()}"


def _links_together(topology: Topology) -> Iterator[Problem]:
    seen: dict[str, int] = {}
    for at, link in enumerate(topology.links):
        if link.name in seen:
            yield ("links", at), f"a second link {link.name}, the first is links[{seen[link.name]}]; expected one"
        seen.setdefault(link.name, at)
    for name in topology.of_kind("prfaas"):
        if not any(topology.link(name, home) for home in topology.of_kind("pd")):
            yield ("clusters", name), "no link leads from it to a pd cluster; expected one in `links`"


def _listeners(topology: Topology) -> Iterator[Problem]:
    seen: dict[tuple[str, int], str] = {}
    for where, endpoint, advertise in listeners(topology):
        if endpoint.wildcard and advertise is None:
            what = f"{endpoint} is every interface; expected `advertise` beside it: the host that peers dial"
            yield where, what
        key = (_host(advertise or endpoint.host), endpoint.port)
        if key in seen:
            yield where, f"port {endpoint.port} is taken by {seen[key]}; expected another port"
        seen.setdefault(key, ".".join(str(step) for step in where))


def listeners(topology: Topology) -> Iterator[tuple[Where, Endpoint, str | None]]:
    """Every listener that the file names: its place, its endpoint, and the host to dial when that is another."""
    for name, cluster in topology.clusters.items():
        where: Where = ("clusters", name)
        if cluster.listen is not None:
            yield (*where, "listen"), cluster.listen, cluster.advertise
        if cluster.events_listen is not None:
            yield (*where, "events_listen"), cluster.events_listen, cluster.advertise
        for at, node in enumerate(cluster.nodes):
            for key, endpoint in node.listeners.items():
                if endpoint is not None:
                    yield (*where, "nodes", at, key), endpoint, node.advertise
            if node.replay_listen is not None:
                yield (*where, "nodes", at, "replay_listen"), node.replay_listen, node.advertise


def _secrets(topology: Topology) -> Iterator[Problem]:
    security = topology.security
    if security.secret_env == security.api_keys_env:
        yield ("security", "api_keys_env"), "the same variable as secret_env; expected another"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _host(host: str) -> str:
    return "127.0.0.1" if host == "localhost" else host.lower()


def _which(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {close[0]!r}?" if close else f"expected one of {', '.join(names)}"
