"""A head and a node of vLLM's: what it publishes, in both encodings, what it replays, and what it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from tests.cluster.test_kvevents import counted
from tests.cluster.test_kvfollow import let_go
from tests.cluster.test_kvnodes import CLUSTER, NODE, ROOT, Head, running, sight

from prfaas.cli.ports import free_ports
from prfaas.config.units import Endpoint
from prfaas.core.ids import NodeName
from prfaas.core.index.places import Known
from prfaas.model.blockhash import block_hashes
from prfaas.testing.noderig import until

END = b"\xff" * 8
BLOCK = 16
TIMES = itertools.count(1)


class Vllm:
    """It publishes as vLLM does: dials its head, keeps the last `steps` messages, and answers at `replay` who asks with
    8 bytes; nothing in what it says is ours. `encoding`: events as maps (0.30 and later), or as arrays."""

    def __init__(self, dial: Endpoint, replay: Endpoint | None, encoding: str = "map", steps: int = 1000) -> None:
        self._map, self.sequence, self._buffer = encoding == "map", 0, deque[tuple[int, bytes]](maxlen=steps)
        context = zmq.asyncio.Context.instance()
        self._pub, self._router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        for one in (self._pub, self._router):
            one.setsockopt(zmq.LINGER, 0)
        self._pub.connect(f"tcp://{dial}")
        self._task: asyncio.Task[None] | None = None
        self.asked = 0
        if replay is not None:
            self._router.bind(f"tcp://{replay}")
            self._task = asyncio.create_task(self._answer())

    async def store(self, prompt: int, blocks: int = 8, *, heard: bool = True) -> None:
        """Blocks of 16 tokens, by hashes of its own: 32 bytes each."""
        tokens = tokens_of(prompt, blocks)
        names = names_of(prompt, blocks)
        await self._publish("BlockStored", heard, block_hashes=names, parent_block_hash=None, token_ids=tokens, **SAID)

    async def remove(self, prompt: int, blocks: int = 8, *, heard: bool = True) -> None:
        names = names_of(prompt, blocks)
        await self._publish("BlockRemoved", heard, block_hashes=names, medium="GPU", group_idx=0)

    async def clear(self) -> None:
        await self._publish("AllBlocksCleared", True)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._pub.close()
        self._router.close()

    async def _publish(self, kind: str, heard: bool, **fields: Any) -> None:
        event = {"type": kind, **fields} if self._map else [kind, *fields.values()]
        payload = msgspec.msgpack.encode([float(next(TIMES)), [event], 0])
        self._buffer.append((self.sequence, payload))
        if heard:
            await self._pub.send_multipart([NODE.encode(), self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    async def _answer(self) -> None:
        while True:
            who, _, first = await self._router.recv_multipart()  # it takes no fourth frame
            self.asked += 1
            for sequence, payload in list(self._buffer):
                if sequence >= int.from_bytes(first, "big"):
                    await self._router.send_multipart([who, b"", NODE.encode(), sequence.to_bytes(8, "big"), payload])
            await self._router.send_multipart([who, b"", b"", END, b""])


SAID: dict[str, Any] = {
    "block_size": BLOCK,
    "lora_id": None,
    "medium": "GPU",
    "lora_name": None,
    "extra_keys": None,
    "group_idx": 0,
    "kv_cache_spec_kind": "full_attention",
    "kv_cache_spec_sliding_window": None,
}


def names_of(prompt: int, blocks: int) -> list[bytes]:
    return [hashlib.sha256(b"%d %d" % (prompt, at)).digest() for at in range(blocks)]


def tokens_of(prompt: int, blocks: int = 8) -> list[int]:
    return [prompt * 1000 + at for at in range(blocks * BLOCK)]


def usable(head: Head, prompt: int) -> int:
    return head.exchange.index.usable(block_hashes(tokens_of(prompt), ROOT)).in_cluster(CLUSTER)


async def heard(node: Vllm, head: Head, prompt: int) -> None:
    """A PUB socket drops what nobody is known to have subscribed to: until something arrives it is said again."""
    async with asyncio.timeout(30):
        while not counted(head.metrics, NODE):
            await node.store(prompt)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(head.changed.wait(), 0.05)
            head.changed.clear()
    await head.until(lambda: usable(head, prompt) > 0 and head.known is not Known.UNKNOWN)


@contextlib.asynccontextmanager
async def pair(encoding: str, *, replays: bool = True, steps: int = 1000) -> AsyncIterator[tuple[Vllm, Head, Endpoint]]:
    replay = Endpoint.at("127.0.0.1", free_ports(1, set())[0])
    head = Head({NodeName(NODE): replay if replays else None})
    async with running(head):
        node = Vllm(head.at, replay if replays else None, encoding, steps)
        head.nodes.member(sight(1, []))
        try:
            yield node, head, replay
        finally:
            await node.close()


@pytest.mark.parametrize("encoding", ["map", "array"])
async def test_a_gap_is_replayed(encoding: str) -> None:
    async with pair(encoding) as (node, head, _):
        await heard(node, head, 1)
        await head.until(lambda: head.known is Known.WHOLLY)
        await node.store(2)
        await head.until(lambda: usable(head, 2) == 128)
        await node.remove(2, heard=False)
        await node.store(3, heard=False)
        await node.store(4)
        await head.until(lambda: usable(head, 4) == 128 and head.known is Known.WHOLLY)
        assert [usable(head, prompt) for prompt in (1, 2, 3, 4)] == [128, 0, 128, 128]


@pytest.mark.parametrize("encoding", ["map", "array"])
async def test_a_gap_that_is_gone_from_its_buffer_leaves_nothing_of_what_was_before(encoding: str) -> None:
    async with pair(encoding, steps=2) as (node, head, _):
        await heard(node, head, 1)
        for _ in range(node.sequence + 1):  # every copy that it told of
            await node.remove(1, heard=False)
        await node.store(5, heard=False)
        await node.store(6)
        await head.until(lambda: usable(head, 6) == 128)
        assert head.known is Known.PARTLY
        assert [usable(head, prompt) for prompt in (1, 5)] == [0, 128]
        await node.clear()
        await head.until(lambda: head.known is Known.WHOLLY)
        assert head.exchange.index.blocks == 0


async def test_a_gap_of_one_that_answers_nobody_leaves_nothing_of_what_was_before() -> None:
    async with pair("map", replays=False) as (node, head, _):
        await heard(node, head, 1)
        await node.remove(1, heard=False)
        await node.store(2)
        await head.until(lambda: usable(head, 2) == 128)
        assert (head.known, usable(head, 1)) == (Known.PARTLY, 0)


async def test_a_head_that_comes_late_gets_what_it_still_has() -> None:
    async with pair("map") as (node, head, replay):
        await heard(node, head, 1)
        late = Head({NodeName(NODE): replay})
        async with running(late):
            late.nodes.member(sight(1, []))
            await late.until(lambda: late.known is Known.WHOLLY)
            assert usable(late, 1) == 128


async def test_another_incarnation_holds_nothing_of_the_one_before() -> None:
    async with pair("map") as (node, head, replay):
        await heard(node, head, 1)
        await node.close()
        await let_go(replay)
        again = Vllm(head.at, replay)
        await again.store(2, heard=False)
        head.nodes.member(sight(2, []))
        assert (head.known, usable(head, 1)) == (Known.UNKNOWN, 0)
        await head.until(lambda: head.known is Known.WHOLLY)
        assert [usable(head, prompt) for prompt in (1, 2)] == [0, 128]
        await again.close()


async def test_one_that_does_not_answer_is_known_by_what_it_says_from_then_on() -> None:
    """Its address is one where nobody listens: what is asked there is given up."""
    replay = Endpoint.at("127.0.0.1", free_ports(1, set())[0])
    head = Head({NodeName(NODE): replay})
    head.nodes._follower._answer_s = 0.05
    async with running(head):
        node = Vllm(head.at, None)
        head.nodes.member(sight(1, []))
        await heard(node, head, 1)
        await until(lambda: head.known is Known.PARTLY, "it is known partly")
        await node.close()
