"""What the composition roots of both heads share: addresses of programs, the prefill head, listening."""

from __future__ import annotations

from collections.abc import Callable

import aiohttp
from aiohttp import web

from prfaas.cluster.head import ClusterHead, HeadSettings
from prfaas.cluster.nodeclient import NodeAddress, NodeClient
from prfaas.cluster.shares import LinkShares
from prfaas.cluster.watch import Report
from prfaas.config.environment import Environment
from prfaas.config.topology import Cluster, Node, Topology
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import ClusterName, LinkName, NodeName
from prfaas.runtime.http import Listening, serve


def home_link(cluster: ClusterName) -> LinkName:
    """The name of hand-overs inside one cluster."""
    return LinkName(f"{cluster}->{cluster}")


def url_of(listen: Endpoint | None, advertise: str | None, what: str) -> str:
    """Where peers reach a program. Raises ConfigError when the topology does not say."""
    if listen is None:
        raise ConfigError(f"{what} has no `listen`; expected HOST:PORT (only `prfaas up` picks ports)")
    host = advertise or listen.host
    return f"http://[{host}]:{listen.port}" if ":" in host else f"http://{host}:{listen.port}"


def client_of(session: aiohttp.ClientSession, cluster: ClusterName, node: Node) -> NodeClient:
    """Calls to `node`."""
    url = url_of(node.listen, node.advertise, f"node {node.name} of cluster {cluster}")
    return NodeClient(session, NodeAddress(node.id, url))


def service_of(session: aiohttp.ClientSession, name: ClusterName, cluster: Cluster) -> NodeClient:
    """Calls to the prefill service of cluster `name`."""
    url = url_of(cluster.listen, cluster.advertise, f"cluster {name}")
    return NodeClient(session, NodeAddress(NodeName(name), url))


def head_of(
    topology: Topology,
    environment: Environment,
    session: aiohttp.ClientSession,
    name: ClusterName,
    shares: LinkShares,
    listen: Callable[[Report], None] = lambda report: None,
) -> ClusterHead:
    """The head of the prefill nodes of cluster `name`."""
    limits = topology.limits
    settings = HeadSettings(
        cluster=name,
        model=topology.public_name,
        queue_length=limits.queue_length,
        ticket_secret=environment.secret.encode(),
        connections={link.name: link.connections for link in topology.links if link.source == name},
        poll_s=limits.health_interval_ns / 1e9,
    )
    clients = [client_of(session, name, node) for node in topology.clusters[name].of_role("prefill")]
    return ClusterHead(settings, clients, shares, listen)


async def listen(app: web.Application, cluster: Cluster, name: ClusterName) -> Listening:
    """Listen where the topology says. Raises ConfigError when it does not say, or when that cannot be had."""
    at = cluster.listen
    if at is None:
        raise ConfigError(f"cluster {name} has no `listen`; expected HOST:PORT (only `prfaas up` picks ports)")
    try:
        return await serve(app, at.host, at.port)
    except OSError as error:
        raise ConfigError(f"cannot listen on {at}: {error.strerror}; expected a free address") from None
