"""`prfaas node --join`: a node that the topology does not list, and its life as a member of its cluster.

It knows what a joining node takes from the file and from the command line, and what happens when it is told to end: it
leaves with notice. The node itself is `cli.node`'s business.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

import structlog
from msgspec.structs import replace

from prfaas.cli.heads import url_of
from prfaas.config.topology import NAME, Cluster, Node, Topology
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.engine.node.joining import Joining
from prfaas.engine.node.server import NodeServer
from prfaas.runtime.client import Refused, make_session
from prfaas.runtime.http import Listening
from prfaas.runtime.tasks import until_stopped
from prfaas.wire.members import DataAddress, JoinRequest

log = structlog.get_logger(__name__)
ANY_PORT = "127.0.0.1:0"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says of a node that joins. `like`: a listed node whose engine it has, "" for the first of
    its role. Listeners as HOST:PORT, port 0 for any."""

    name: str
    role: str
    like: str
    listen: str
    data_listen: str
    advertise: str | None


def joining_node(topology: Topology, cluster: str, wanted: Wanted) -> Node:
    """The node that joins `cluster`. Raises ConfigError."""
    known = topology.clusters[cluster]
    listed = {node.name: node for other in topology.clusters.values() for node in other.nodes}
    if not re.fullmatch(NAME, wanted.name):
        raise ConfigError(f"the name {wanted.name!r}; expected lower-case letters, digits and hyphens, at most 63")
    if wanted.name in listed:
        raise ConfigError(f"{wanted.name!r} is a node of the file; expected another name, or no --join")
    if wanted.role == "decode" and known.kind == "prfaas":
        raise ConfigError(f"cluster {cluster} only prefills; expected --role prefill, or a cluster of kind pd")
    model = _like(listed, known, wanted)
    listen, data_listen = _endpoint(wanted.listen, "--listen"), _endpoint(wanted.data_listen, "--data-listen")
    for option, endpoint in (("--listen", listen), ("--data-listen", data_listen)):
        if endpoint.wildcard and wanted.advertise is None:
            raise ConfigError(f"{option} {endpoint} is every interface; expected --advertise with the host to dial")
    return replace(
        model,
        name=wanted.name,
        role="decode" if wanted.role == "decode" else "prefill",
        listen=listen,
        data_listen=data_listen,
        advertise=wanted.advertise,
    )


class Joiner:
    """A node's membership of `cluster` from being ready to having left; `drain_s` bounds the wait for its last work."""

    def __init__(self, topology: Topology, cluster: str, node: Node, secret: str, drain_s: float) -> None:
        head = topology.clusters[cluster]
        self._head_url = url_of(head.listen, head.advertise, f"cluster {cluster}")
        self._lease_ms = topology.limits.leases.node_ns // 1_000_000
        self._node, self._secret, self._drain_s = node, secret, drain_s

    async def serve(self, server: NodeServer, listening: Listening, stopped: asyncio.Task[int]) -> int:
        """Be a member until `stopped`, then leave; a second signal cuts that short. The exit code: 1 when refused."""
        async with make_session(self._secret) as session:
            joining = Joining(session, self._head_url, self._request(server, listening))
            keeping = asyncio.create_task(joining.run(), name="membership")
            try:
                await asyncio.wait({stopped, keeping}, return_when=asyncio.FIRST_COMPLETED)
                if keeping.done():
                    keeping.result()
            except Refused as refused:
                log.error("the cluster's head refuses this node", code=refused.code, detail=refused.detail)
                return 1
            finally:
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)
            if stopped.result() == 0:
                await self._leave(server, joining)
            return stopped.result()

    async def _leave(self, server: NodeServer, joining: Joining) -> None:
        def busy() -> bool:
            return server.blocks_in_use + server.transfers_in_use > 0

        leaving = asyncio.create_task(joining.leave(self._drain_s, busy), name="leave")
        hurried = asyncio.create_task(until_stopped(server.tasks), name="until stopped again")
        await asyncio.wait({leaving, hurried}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leaving, hurried):
            task.cancel()
        await asyncio.gather(leaving, hurried, return_exceptions=True)

    def _request(self, server: NodeServer, listening: Listening) -> JoinRequest:
        info = server.info()
        host = self._node.advertise or listening.host
        return JoinRequest(
            node=info.node,
            role=info.role,
            epoch=info.epoch,
            url=f"http://{Endpoint.at(host, listening.port)}",
            data=[DataAddress(at.host, at.port) for at in info.data],
            model=info.model,
            layout=info.layout,
            max_model_len=info.max_model_len,
            max_sequences=info.max_sequences,
            lease_ms=self._lease_ms,
        )


def _like(listed: dict[str, Node], cluster: Cluster, wanted: Wanted) -> Node:
    if wanted.like:
        if wanted.like not in listed:
            raise ConfigError(f"--like {wanted.like}: no such node in the file; expected one of {', '.join(listed)}")
        return listed[wanted.like]
    same = [node for node in cluster.nodes if node.role == wanted.role]
    return (same or list(cluster.nodes))[0]


def _endpoint(text: str, option: str) -> Endpoint:
    host, _, port = text.rpartition(":")
    try:
        Endpoint.parse(f"{host}:1" if port == "0" else text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None
    return Endpoint(text)
