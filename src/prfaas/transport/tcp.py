"""The TCP transport: `StreamTransport` over sockets.

It knows asyncio's servers and connections, and TLS contexts that it is given. It does not know transfers.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections.abc import Callable, Mapping

from prfaas.core.errors import ConfigError
from prfaas.core.ids import Epoch, LinkName, NodeName
from prfaas.transport.base import Peer
from prfaas.transport.stats import TransferStats
from prfaas.transport.stream.connection import Connection
from prfaas.transport.stream.limits import TransportLimits
from prfaas.transport.stream.transport import StreamTransport

_BACKLOG = 512


class TcpTransport(StreamTransport):
    """See `StreamTransport` for the arguments. TLS: `server_tls` for what is accepted, `client_tls` for what is
    dialled."""

    def __init__(
        self,
        node: NodeName,
        epoch: Epoch,
        secret: bytes | None,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], float] = time.time,
        paced_links: frozenset[LinkName] = frozenset(),
        delays: Mapping[LinkName, int] | None = None,
        stats: TransferStats | None = None,
        limits: TransportLimits | None = None,
        server_tls: ssl.SSLContext | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(
            node,
            epoch,
            secret,
            clock=clock,
            wall=wall,
            paced_links=paced_links,
            delays=delays,
            stats=stats,
            limits=limits,
        )
        self._server_tls, self._client_tls = server_tls, client_tls
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> Peer:
        """See `Transport.listen`. Raises ConfigError for an address beyond loopback without a secret."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        if self.secret is None and not all(_is_loopback(str(entry[4][0])) for entry in found):
            raise ConfigError(f"refusing to listen on {host} without a shared secret: anyone could fetch KV")
        tls = self._server_tls
        server = await loop.create_server(self.accept, host, port, ssl=tls, backlog=_BACKLOG)
        self._servers.append(server)
        address = server.sockets[0].getsockname()
        # A name with several addresses has several sockets, with ports of their own: name the first.
        return Peer(host if len(server.sockets) == 1 else address[0], address[1])

    async def dial(self, peer: Peer, connection: Connection) -> None:
        """See `StreamTransport.dial`."""
        tls = self._client_tls
        await asyncio.get_running_loop().create_connection(lambda: connection, peer.host, peer.port, ssl=tls)

    def close_listeners(self) -> None:
        """See `StreamTransport.close_listeners`."""
        for server in self._servers:
            server.close()
        self._servers.clear()


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback
