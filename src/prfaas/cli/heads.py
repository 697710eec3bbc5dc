"""What the composition roots of both heads share: addresses of programs, members, the prefill head, listening."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp import web

from prfaas.cluster.head import ClusterHead, HeadSettings
from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.roster import ListedNode, Roster
from prfaas.cluster.shares import LinkShares
from prfaas.cluster.vllmnode import SequentialVllm, StreamingVllm, VllmNode
from prfaas.config.environment import Environment
from prfaas.config.topology import Cluster, Node, Topology, VllmEngine
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName, LinkName, NodeName
from prfaas.core.membership.events import Role
from prfaas.core.membership.members import MemberPolicy
from prfaas.core.routing.catalog import policy_of
from prfaas.runtime.http import Listening, serve
from prfaas.runtime.metrics import Metrics


def home_link(cluster: ClusterName) -> LinkName:
    """The name of hand-overs inside one cluster."""
    return LinkName(f"{cluster}->{cluster}")


def url_of(listen: Endpoint | None, advertise: str | None, what: str) -> str:
    """Where peers reach a program. Raises ConfigError when the topology does not say."""
    if listen is None:
        raise ConfigError(f"{what} has no `listen`; expected HOST:PORT (only `prfaas up` picks ports)")
    host = advertise or listen.host
    return f"http://[{host}]:{listen.port}" if ":" in host else f"http://{host}:{listen.port}"


def roster_of(
    topology: Topology,
    session: aiohttp.ClientSession,
    name: ClusterName,
    metrics: Metrics,
) -> Roster:
    """The members of cluster `name`: the nodes that the topology lists, and those that will join."""
    cluster, limits = topology.clusters[name], topology.limits
    roles: tuple[Role, ...] = ("prefill", "decode") if cluster.kind == "pd" else ("prefill",)
    policy = MemberPolicy(
        cluster=name,
        model=topology.public_name,
        roles=roles,
        taken=frozenset(node.id for other in topology.clusters.values() for node in other.nodes),
    )
    listed = [
        ListedNode(
            node.role,
            NodeAddress(node.id, url_of(node.listen, node.advertise, f"node {node.name} of cluster {name}")),
        )
        for node in cluster.nodes
    ]

    def connect(address: NodeAddress) -> NodeClient:
        node = cluster.node(address.name)
        if node is None or not isinstance(node.engine, VllmEngine):
            return NodeClient(session, address)
        return vllm_client(topology, session, name, node, node.engine, address)

    return Roster(
        policy,
        listed,
        connect,
        metrics,
        poll_s=limits.health_interval_ns / 1e9,
        lease_ns=limits.leases.node_ns,
    )


def vllm_client(
    topology: Topology,
    session: aiohttp.ClientSession,
    name: ClusterName,
    node: Node,
    engine: VllmEngine,
    address: NodeAddress,
) -> SequentialVllm:
    """Calls to a node of kind vllm. How a prefill node hands over is its cluster's: to another cluster, or inside."""
    control = ""
    if "prfaas" in engine.connectors:
        where = f"node {node.name} of cluster {name}: control"
        control = url_of(node.control_listen, node.advertise, where)
    vllm = VllmNode(name, node.role, topology.public_name, engine.max_sequences, control)
    way = engine.connector if topology.clusters[name].kind == "prfaas" else engine.within
    ours = control and (way == "prfaas" or node.role == "decode")
    return (StreamingVllm if ours else SequentialVllm)(session, address, vllm)


def service_of(session: aiohttp.ClientSession, name: ClusterName, cluster: Cluster) -> NodeClient:
    """Calls to the prefill service of cluster `name`."""
    url = url_of(cluster.listen, cluster.advertise, f"cluster {name}")
    return NodeClient(session, NodeAddress(NodeName(name), url))


def head_of(
    topology: Topology,
    environment: Environment,
    name: ClusterName,
    roster: Roster,
    shares: LinkShares,
    changed: Callable[[], None] = lambda: None,
) -> ClusterHead:
    """The head of the prefill nodes of cluster `name`."""
    said = topology.policy
    settings = HeadSettings(
        cluster=name,
        model=topology.public_name,
        queue_length=topology.limits.queue_length,
        ticket_secret=environment.secret.encode(),
        connections={link.name: link.connections for link in topology.links if link.source == name},
        order=policy_of(said.kind, said.threshold, said.order).order,
    )
    return ClusterHead(settings, roster, shares, changed)


async def listen(app: web.Application, cluster: Cluster, name: ClusterName) -> Listening:
    """Listen where the topology says. Raises ConfigError when it does not say, or when that cannot be had."""
    at = cluster.listen
    if at is None:
        raise ConfigError(f"cluster {name} has no `listen`; expected HOST:PORT (only `prfaas up` picks ports)")
    try:
        return await serve(app, at.host, at.port)
    except OSError as error:
        raise ConfigError(f"cannot listen on {at}: {error.strerror}; expected a free address") from None
