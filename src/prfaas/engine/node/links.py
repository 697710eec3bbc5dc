"""A node's end of its links, from the topology."""

from __future__ import annotations

from prfaas.config.environment import Environment
from prfaas.config.topology import Node, Topology
from prfaas.core.ids import ClusterName, Epoch
from prfaas.transport.stats import TransferStats
from prfaas.transport.tcp import TcpTransport


def transport_of(
    topology: Topology,
    environment: Environment,
    cluster: ClusterName,
    node: Node,
    epoch: Epoch,
    stats: TransferStats,
) -> TcpTransport:
    """A node's end of its links. What leaves its cluster waits for a pace; emulated links delay both directions."""
    return TcpTransport(
        node.id,
        epoch,
        environment.secret.encode(),
        paced_links=frozenset(link.name for link in topology.links if link.source == cluster),
        delays={
            link.name: link.rtt_ns // 2
            for link in topology.links
            if link.emulate and cluster in (link.source, link.target)
        },
        stats=stats,
    )
