"""How the programs of a topology tell each other of prefix caches: hash roots, where nodes publish, who hears them.

It knows the topology's settings and the parts; it does not know what is told.
"""

from __future__ import annotations

from typing import NamedTuple

from prfaas.cluster.enginemap import Roots
from prfaas.config.environment import Environment
from prfaas.config.topology import Cluster, Node, Topology, VllmEngine
from prfaas.config.units import Endpoint
from prfaas.core.ids import Epoch
from prfaas.engine.node.telling import Telling
from prfaas.model.blockhash import CacheKey
from prfaas.runtime.kvpublish import KVPublisher


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
