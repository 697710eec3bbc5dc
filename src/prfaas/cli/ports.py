"""Ports of this machine: which are taken, which are free.

It knows sockets; it does not know programs. Free ports are looked for below the range that the system hands to outgoing
connections, so that none is taken between the look and the listening.
"""

from __future__ import annotations

import errno
import secrets
import socket
from collections.abc import Iterable

from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError

FIRST, LAST = 20_000, 29_999


def check_free(listeners: Iterable[tuple[str, Endpoint]]) -> None:
    """Raises ConfigError when one of `listeners`, (place in the file, endpoint), cannot be listened on here."""
    for place, endpoint in listeners:
        try:
            bound(endpoint.host, endpoint.port).close()
        except socket.gaierror:
            raise ConfigError(f"{place}: {endpoint.host} has no address; expected one of this machine") from None
        except OSError as error:
            raise ConfigError(f"{place}: {_why(error, endpoint)}") from None


def free_ports(count: int, avoid: set[int]) -> list[int]:
    """`count` different ports on loopback that nobody listens on. Raises ConfigError when there are not so many."""
    found: list[int] = []
    span = LAST - FIRST + 1
    start = secrets.randbelow(span)
    for step in range(span):
        port = FIRST + (start + step) % span
        if len(found) == count:
            break
        if port in avoid:
            continue
        try:
            bound("127.0.0.1", port).close()
        except OSError:
            continue
        found.append(port)
    if len(found) < count:
        raise ConfigError(f"no {count} free ports from {FIRST} to {LAST} on 127.0.0.1; expected `listen` in the file")
    return found


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there. Raises OSError when that is not possible."""
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1)
    except OSError:
        sock.close()
        raise
    return sock


def _why(error: OSError, endpoint: Endpoint) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"{endpoint} is in use by another program; expected a free port (--port sets the gateway's)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{endpoint.host} is not an address of this machine; expected one, since `up` starts everything here"
    return f"cannot listen on {endpoint}: {error.strerror}"
