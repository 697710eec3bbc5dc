"""How the programs of a topology tell each other of prefix caches: hash roots, where nodes publish, who hears them.

It knows the topology's settings and the parts; it does not know what is told.
"""

from __future__ import annotations

from typing import NamedTuple

from prfaas.cluster.enginemap import Roots
from prfaas.cluster.kvexchange import KVExchange
from prfaas.cluster.kvnodes import KVNodes
from prfaas.cluster.roster import Roster
from prfaas.config.environment import Environment
from prfaas.config.topology import Cluster, Node, Topology, VllmEngine
from prfaas.config.units import Endpoint
from prfaas.core.ids import Epoch
from prfaas.engine.node.telling import Telling
from prfaas.model.blockhash import CacheKey
from prfaas.runtime.kvpublish import KVPublisher
from prfaas.runtime.metrics import Metrics
from prfaas.runtime.tasks import Tasks


class Told(NamedTuple):
    """How a node tells of its cache."""

    telling: Telling
    publisher: KVPublisher


def roots_of(topology: Topology) -> Roots:
    """Roots of canonical hashes, by salt and adapter. The public name stands for the model: heads have no weights."""
    name, seed = topology.public_name, topology.security.prefix_seed
    return lambda salt, adapter: CacheKey(name, seed, salt=salt, adapter=adapter).root()


def events_dial(cluster: Cluster) -> Endpoint | None:
    """Where nodes of `cluster` reach its head with their KV events; None where it does not listen for any."""
    at = cluster.events_listen
    return None if at is None else Endpoint.at(cluster.advertise or at.host, at.port)


def replay_dial(node: Node) -> Endpoint | None:
    """Where a node of vLLM's is asked what was missed of its KV events; None where it answers nobody."""
    at = node.replay_listen
    return None if at is None else Endpoint.at(node.advertise or at.host, at.port)


def hear_nodes(
    topology: Topology,
    environment: Environment,
    exchange: KVExchange,
    roster: Roster,
    metrics: Metrics,
    tasks: Tasks,
) -> bool:
    """Knows from now on what the nodes of the head's cluster hold. False where the topology does not say where they are
    heard. Raises ConfigError when that address cannot be had."""
    cluster = topology.clusters[exchange.cluster]
    if cluster.events_listen is None:
        return False
    foreign = {node.id: replay_dial(node) for node in cluster.nodes if isinstance(node.engine, VllmEngine)}
    nodes = KVNodes(
        exchange,
        cluster.events_listen,
        roster,
        roots_of(topology),
        metrics,
        foreign=foreign,
        secret=environment.secret,
    )
    tasks.spawn(nodes.run(), "KV events")
    return True


def publisher_of(
    topology: Topology, environment: Environment, cluster: Cluster, node: Node, epoch: Epoch, host: str
) -> Told | None:
    """What `node` tells of its cache with, and to whom; None where it keeps no prefixes, or nobody listens. Questions
    are answered at `host`, at any port. Raises ConfigError when it cannot listen there."""
    dial = events_dial(cluster)
    if dial is None or isinstance(node.engine, VllmEngine) or not node.engine.prefix_cache:
        return None
    telling = Telling(roots_of(topology)("", ""))
    publisher = KVPublisher(
        node.name, epoch, dial, replay=Endpoint.at(host, 0), secret=environment.secret, snapshot=telling.snapshot
    )
    telling.publish = publisher.publish
    return Told(telling, publisher)
