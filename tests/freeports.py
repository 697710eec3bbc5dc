"""Ports for programs that tests start: free now, and none that the system hands to an outgoing connection meanwhile."""

from __future__ import annotations

from prfaas.cli.ports import bound, free_ports
from prfaas.config.units import Endpoint


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that nobody listens on."""
    while True:
        (first,) = free_ports(1, set())
        try:
            for port in range(first + 1, first + count):
                bound("127.0.0.1", port).close()
        except OSError:
            continue
        return first


def free_endpoint() -> Endpoint:
    """One of them, with its host."""
    return Endpoint.at("127.0.0.1", free_port())
