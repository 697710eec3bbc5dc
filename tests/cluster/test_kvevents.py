"""KV events over a real socket: from a publisher that dials, as vLLM's does."""

from __future__ import annotations

import asyncio
import socket

import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.freeports import free_endpoint

from prfaas.cluster.kvevents import KVEventsReader
from prfaas.config.units import Endpoint
from prfaas.core.errors import ConfigError
from prfaas.core.ids import NodeName
from prfaas.runtime.metrics import Metrics
from prfaas.wire.kvevents import KVEvents

NODES = [NodeName("p0"), NodeName("p1")]


def frames(node: str, sequence: int, *events: object) -> list[bytes]:
    return [node.encode(), sequence.to_bytes(8, "big"), msgspec.msgpack.encode([1.0, list(events)])]


def counted(metrics: Metrics, node: str) -> dict[str, float]:
    return {
        sample.labels["kind"]: sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == "prfaas_kv_events_total" and sample.labels["node"] == node
    }


async def test_over_a_socket() -> None:
    at, metrics, heard = free_endpoint(), Metrics(), asyncio.Queue[tuple[NodeName, KVEvents]]()
    reader = KVEventsReader(at, NODES, metrics, lambda node, events: heard.put_nowait((node, events)))
    running = asyncio.create_task(reader.run())
    publisher = zmq.asyncio.Context.instance().socket(zmq.PUB)
    publisher.setsockopt(zmq.LINGER, 0)
    publisher.connect(f"tcp://{at}")
    try:
        async with asyncio.timeout(20):
            while heard.empty():  # until the subscription is known to the publisher, it drops what it has
                await publisher.send_multipart(frames("p0", 7, {"type": "AllBlocksCleared"}))
                await asyncio.wait({running}, timeout=0.05)
            stored = ["BlockStored", [b"h"], None, [1, 2], 2, None]
            await publisher.send_multipart(frames("p1", 0, stored, ["BlockRemoved", [b"h"]]))
            while (found := await heard.get())[0] != "p1":
                pass
        assert found[1].sequence == 0
        assert counted(metrics, "p1") == {"stored": 1, "removed": 1}
    finally:
        publisher.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_gaps_restarts_and_rubbish_are_counted() -> None:
    metrics = Metrics()
    reader = KVEventsReader(free_endpoint(), NODES, metrics)
    cleared = {"type": "AllBlocksCleared"}
    for message in (
        frames("p0", 3, cleared),
        frames("p0", 4, cleared),
        frames("p0", 9, cleared),  # four are missing
        frames("p0", 0, cleared),  # began anew
        frames("p0", 1, cleared),
        [b"p0", b"", b"rubbish"],
        frames("p0-and-more", 1, cleared),
        frames("stranger", 1, cleared),
    ):
        reader.take(message)
    assert counted(metrics, "p0") == {"cleared": 5, "lost": 4, "broken": 1}
    assert counted(metrics, "p0-and-more") == counted(metrics, "stranger") == {}
    reader._socket.close()


async def test_an_address_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = Endpoint.at("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(ConfigError, match=f"cannot listen on {at}"):
            KVEventsReader(at, NODES, Metrics())
