"""What our own side may not ask for is told before anything happens."""

from __future__ import annotations

import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import ConfigError, LocalError
from prfaas.core.ids import Epoch, NodeName, TransferId
from prfaas.testing.conformance import LINK, Pair
from prfaas.transport.memory import MemoryNetwork, MemoryTransport
from prfaas.transport.tcp import TcpTransport


def test_a_short_secret() -> None:
    with pytest.raises(ConfigError, match="5 bytes"):
        TcpTransport(NodeName("far0"), Epoch(1), b"short")


async def test_nobody_to_dial_or_too_many_connections(pair: Pair) -> None:
    with pytest.raises(LocalError):
        pair.home.receive(TransferId("r.0"), pair.layout, 10, [], "", held=0, connections=1, link=LINK, deadline_ns=0)
    for connections in (0, 65):
        with pytest.raises(LocalError):
            pair.receive("r.0", 10, connections=connections)
    assert pair.home.in_use == 0


async def test_a_part_that_no_frame_can_carry(pair: Pair) -> None:
    pair.layout = KVLayout("huge", (Part(0, "s", PartKind.STATE, (1, 5000, 5000), "float32"),))
    with pytest.raises(LocalError, match="layer 0 s: 100000000 bytes"):
        pair.offer("r.0", 10)
    assert pair.far.in_use == 0


async def test_two_listeners_at_one_address() -> None:
    network = MemoryNetwork()
    first, second = [MemoryTransport(NodeName(n), Epoch(1), None, network) for n in ("far0", "far1")]
    peer = await first.listen("far", 7)
    with pytest.raises(OSError, match="in use"):
        await second.listen("far", 7)
    await first.close()
    assert await second.listen("far", 7) == peer
    await second.close()
