"""Workers of two nodes of any tensor parallelism, without vLLM: real tensors, real bytes, transports in memory.

Each worker has the cache that vLLM would give it (stand-ins for its specs), its own transport, and the connector's own
worker side; the mover is one that runs on the test's loop.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from prfaas.core.cache.layout import KVLayout, PartKind
from prfaas.core.ids import Epoch, LinkName, NodeName, TransferId
from prfaas.core.transfer.shards import held_heads
from prfaas.engine.node.credit import Credits
from prfaas.engine.vllm.deals import Deals
from prfaas.engine.vllm.incoming import Incoming
from prfaas.engine.vllm.layout import CacheMap, cache_map
from prfaas.engine.vllm.mover import Failed, Happened, Landed, Over
from prfaas.engine.vllm.orders import Load, Offer, Orders, Receive, Save
from prfaas.engine.vllm.outgoing import Outgoing
from prfaas.engine.vllm.pages import Pages
from prfaas.engine.vllm.place import Place
from prfaas.engine.vllm.staging import CpuStaging
from prfaas.engine.vllm.worker import WorkerSide
from prfaas.runtime.tasks import Tasks
from prfaas.transport.base import LandedKV, Peer
from prfaas.transport.memory import MemoryNetwork, MemoryTransport
from prfaas.wire.control import Address, TransferParams
from prfaas.wire.ticket import mint

SECRET = b"a secret of the tests, and long enough to be one"
LINK = LinkName("far->home")
EPOCH = Epoch(7)
BLOCKS = 16


@dataclass
class FullAttentionSpec:
    block_size: int
    num_kv_heads: int
    head_size: int = 4
    head_size_v: int = 4
    dtype: str = "torch.float32"


@dataclass
class MLAAttentionSpec(FullAttentionSpec):
    head_size: int = 12
    head_size_v: int = 0


@dataclass
class SlidingWindowSpec(FullAttentionSpec):
    sliding_window: int = 21


@dataclass
class MambaSpec:
    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...] = ("torch.float32", "torch.float32")
    mamba_cache_mode: str = "align"
    mamba_type: Any = field(default_factory=lambda: SimpleNamespace(name="GDN_ATTN"))


HEADS = {0: 8, 1: 4, 2: 2, 3: 1, 4: 1}
"""Of the layers' KV: attention, a window, attention of few heads, of one head, and MLA."""


def specs(ranks: int, block: int, states: bool) -> list[tuple[str, Any]]:
    """What vLLM gives one worker of `ranks`."""
    local = {layer: max(1, heads // ranks) for layer, heads in HEADS.items()}
    found: list[tuple[str, Any]] = [
        ("model.layers.0.attn", FullAttentionSpec(block, local[0])),
        ("model.layers.1.attn", SlidingWindowSpec(block, local[1])),
        ("model.layers.2.attn", FullAttentionSpec(block, local[2], head_size_v=6)),
        ("model.layers.3.attn", FullAttentionSpec(block, local[3])),
        ("model.layers.4.attn", MLAAttentionSpec(block, 1)),
    ]
    if states:
        found.append(("model.layers.5.mixer", MambaSpec(block, ((3, 64 // ranks), (8 // ranks, 4, 4)))))
    return found


def cache_of(ranks: int, block: int, states: bool = False) -> CacheMap:
    """Its cache map."""
    groups = [SimpleNamespace(layer_names=[name], kv_cache_spec=spec) for name, spec in specs(ranks, block, states)]
    return cache_map(SimpleNamespace(kv_cache_groups=groups))


def layout_of(cache: CacheMap, ranks: int) -> KVLayout:
    """The layout of the model, as a worker of `ranks` makes it out."""
    return cache.layout("r", ranks, lambda layer: HEADS.get(layer, 0))


def rows_of(layer: int, part: int, head: int, rows: range, width: int) -> torch.Tensor:
    """What rows of a head are: another number everywhere."""
    at = torch.tensor(rows)[:, None] * width + torch.arange(width)[None, :]
    return (((layer * 2 + part) * 8 + head) * 4096 + at).to(torch.float32)


class LoopMover:
    """`mover.Mover` for tests: what it wires, on this loop."""

    def __init__(self, name: str, place: Place, deals: Deals, network: MemoryNetwork, tasks: Tasks) -> None:
        self.transport = MemoryTransport(NodeName(name), place.epoch, SECRET, network)
        self.credits = Credits(1 << 24, 8)
        self.heard: deque[Happened] = deque()
        tell = self.heard.append
        self.outgoing = Outgoing(
            self.transport, deals, place.epoch, 10**10, tasks, lambda name, outcome: tell(Over(name, True, outcome))
        )
        self.incoming = Incoming(
            self.transport,
            deals,
            place,
            self.credits,
            tasks,
            lambda name: tell(Landed(name)),
            lambda name, why: tell(Failed(name, why)),
            lambda name, outcome: tell(Over(name, False, outcome)),
        )

    def happened(self) -> list[Happened]:
        found = list(self.heard)
        self.heard.clear()
        return found

    def offer(self, order: Offer) -> None:
        self.outgoing.offer(order, 30)

    def put(self, transfer: str, to: int, pieces: Sequence[Any]) -> None:
        self.outgoing.put(transfer, to, pieces)

    def finish(self, transfer: str) -> None:
        self.outgoing.finish(transfer)

    def receive(self, order: Receive) -> None:
        self.incoming.receive(order, 30)

    def take(self, transfer: str) -> LandedKV | None:
        return self.incoming.take(transfer)

    def applied(self, transfer: str) -> None:
        self.incoming.applied(transfer)

    def discard(self, transfer: str) -> None:
        self.incoming.discard(transfer)

    def stop(self, transfer: str, code: str, detail: str) -> None:
        self.outgoing.abort(transfer, code, detail)
        self.incoming.stop(transfer, code, detail)


class Worker:
    """One rank: its cache, zeros at first, and its side of the connector."""

    def __init__(self, node: Node, rank: int) -> None:
        self.rank, self.ranks, self.block = rank, node.ranks, node.block
        self.cache = cache_of(node.ranks, node.block, node.states)
        self.tensors: dict[str, Any] = {}
        for name, layer in self.cache.layers.items():
            if layer.parts[0].kind is PartKind.STATE:
                size = sum(part.unit_bytes for part in layer.parts)
                self.tensors[name] = torch.zeros(BLOCKS, size, dtype=torch.uint8)
                continue
            width = sum(part.shape[1] for part in layer.parts)
            self.tensors[name] = torch.zeros(BLOCKS, layer.parts[0].shape[0], node.block, width)
        self.deals = Deals(layout_of(self.cache, node.ranks), rank, node.ranks)
        pages = Pages(self.cache, self.tensors, BLOCKS, {}, CpuStaging())
        self.side = WorkerSide(self.cache, pages, self.deals)
        self.mover = LoopMover(node.name, Place(rank, node.ranks, EPOCH), self.deals, node.network, node.tasks)
        self.side.mover = self.mover  # type: ignore[assignment]

    def model_rows(self, length: int) -> Iterable[tuple[Any, tuple[Any, Any], torch.Tensor]]:
        """For each part: a view of it, where in it the rows of a prompt of `length` tokens are, and what must be there:
        the heads that this rank holds, by their numbers in the model."""
        whole = {(part.layer, part.name): part for part in self.deals.layout.parts}
        for name, layer in self.cache.layers.items():
            at = 0
            for index, part in enumerate(layer.parts):
                if part.kind is PartKind.STATE:
                    continue
                width = part.shape[1]
                rows = range(part.first_row(length), length)
                heads = range(*held_heads(whole[part.layer, part.name], self.rank, self.ranks))
                values = [rows_of(part.layer, index, head, rows, width) for head in heads]
                places = torch.tensor(rows) // self.block + 1, torch.tensor(rows) % self.block
                yield self.tensors[name][..., at : at + width].transpose(1, 2), places, torch.stack(values, 1)
                at += width

    @property
    def state(self) -> int:
        """What every byte of this rank's states is."""
        return self.rank + 1

    def fill(self, length: int) -> None:
        """As a prefill of `length` tokens would."""
        for view, places, values in self.model_rows(length):
            view[places] = values
        for name, layer in self.cache.layers.items():
            if layer.parts[0].kind is PartKind.STATE:
                self.tensors[name][(length - 1) // self.block + 1] = self.state

    def lacks(self, length: int) -> list[str]:
        """What is not there, or not right."""
        parts = [part for part in self.deals.mine.parts if part.kind is not PartKind.STATE]
        pairs = zip(self.model_rows(length), parts, strict=True)
        found = [str(part) for (view, places, values), part in pairs if not torch.equal(view[places], values)]
        for name, layer in self.cache.layers.items():
            block, at = (length - 1) // self.block + 1, self.tensors[name]
            if layer.parts[0].kind is PartKind.STATE and not bool((at[block] == self.state).all()):
                found.append(name)
        return found


class Node:
    """`ranks` workers with blocks of `block` tokens. A sequence has all blocks but the first, vLLM's null block."""

    def __init__(
        self, name: str, ranks: int, block: int, network: MemoryNetwork, tasks: Tasks, states: bool = False
    ) -> None:
        self.name, self.ranks, self.block, self.states = name, ranks, block, states
        self.network, self.tasks = network, tasks
        self.workers = [Worker(self, rank) for rank in range(ranks)]
        self.groups = self.workers[0].cache.groups
        self.peers: list[Peer] = []

    async def listen(self) -> None:
        self.peers = [await worker.mover.transport.listen("127.0.0.1", 0) for worker in self.workers]

    async def close(self) -> None:
        for worker in self.workers:
            await worker.mover.transport.close()

    def step(self, **orders: Any) -> None:
        for worker in self.workers:
            worker.side.begin(Orders(**orders))

    @property
    def table(self) -> list[int]:
        """Of every group."""
        return [*range(1, BLOCKS)]

    def save(self, transfer: str, start: int, stop: int, length: int, receivers: int) -> Save:
        rows = tuple(group.rows(self.table, start, stop, length) for group in self.groups)
        last = stop == length
        states = tuple(group.state_block(self.table, length) if last else None for group in self.groups)
        return Save(transfer, length, rows, states, last, receivers)

    def load(self, transfer: str, held: int, length: int) -> Load:
        rows = tuple(group.rows(self.table, held, length, length) for group in self.groups)
        states = tuple(group.state_block(self.table, length) for group in self.groups)
        return Load("request", transfer, length, held, rows, states)

    def params(self, transfer: str, to: Node, receivers: int | None = None) -> TransferParams:
        """Of the decode leg on `to`, of KV that is held here."""
        return TransferParams(
            transfer,
            do_remote_prefill=True,
            link=LINK,
            remote=[Address(peer.host, peer.port) for peer in self.peers],
            ticket=mint(
                SECRET,
                transfer=TransferId(transfer),
                epoch=EPOCH,
                node=NodeName(self.name),
                receiver=NodeName(to.name),
                link=LINK,
                lifetime_s=60,
                now=time.time(),
            ),
            connections=2,
            receivers=to.ranks if receivers is None else receivers,
        )
