"""The simulation with prefill in chunks: nodes that hold several prompts and compute a chunk of each in turn.

It knows what of a world differs then; the life of a request is `world`'s. A node with work and room takes a prompt at
once, the node that will be done first before others; only nodes without work take from other clusters. Policies see of
each node when all that it holds will be done. KV leaves while its chunk is computed; a chunk that is computed can be
resumed by others.
"""

from __future__ import annotations

from prfaas.core.routing.backlog import Backlog
from prfaas.sim.chunks import ChunkSetup, Device, Slot, chunks_of
from prfaas.sim.nodes import PrefillNode
from prfaas.sim.prefixes import Prefixes
from prfaas.sim.request import UNSEEN, Request
from prfaas.sim.setup import Setup
from prfaas.sim.tiers import TieredPrefixes
from prfaas.sim.world import World


class ChunkedWorld(World):
    """`setup.chunks` says how. With caches a chunk is as many tokens as snapshots lie apart, or a multiple."""

    def _build(self, setup: Setup) -> None:
        assert setup.chunks is not None
        self._chunks: ChunkSetup = setup.chunks
        every = setup.cache.spec.snapshot_tokens if setup.cache else 1
        self._size = -(-setup.chunks.tokens // every) * every
        self.devices: list[list[Device]] = [[] for _ in setup.clusters]
        super()._build(setup)

    def cache(self, setup: Setup) -> Prefixes:
        """See `World`."""
        assert setup.cache is not None
        kind = Prefixes if setup.cache.host is None else TieredPrefixes
        return kind(setup.cache, self._size)

    def add_node(self, at: int) -> list[PrefillNode]:
        """See `World`."""
        device = Device(at, len(self.nodes[at]), self.now_ns, self._chunks.prompts)
        self.devices[at].append(device)
        self.nodes[at] += device.slots
        self.idle[at].append(device.slots[0])
        device.idle, device.free = True, list(reversed(device.slots[1:]))
        return list(device.slots)

    def places(self, at: int, number: int) -> list[PrefillNode]:
        """See `World`."""
        return list(self.devices[at][number].slots)

    def count(self, at: int) -> int:
        """See `World`."""
        return len(self.devices[at])

    def retire(self, node: PrefillNode) -> None:
        """See `World`."""
        device = _device(node)
        if device.idle and node in self.idle[node.cluster]:
            self.idle[node.cluster].remove(node)
            device.idle = False
        else:
            device.free = [slot for slot in device.free if slot is not node]
        self._note(device)

    def beside(self, at: int) -> PrefillNode:
        """See `World`."""
        best: Device = min(self.open[at], key=lambda one: (one.expected_ns, one.slots[0].number))
        return best.free.pop()

    def promise(self, node: PrefillNode, end_ns: int) -> None:
        """See `World`."""
        node.expected_ns = end_ns
        self._foresee(self.now_ns, _device(node))

    def promised(self, at: int) -> tuple[list[int], int]:
        """See `World`."""
        devices = self.devices[at]
        held = [device for device in devices if any(slot.running is not None for slot in device.slots)]
        return sorted(device.expected_ns for device in held), sum(device.slots[0].up for device in devices)

    def working_ns(self, at: int, now_ns: int) -> int:
        """See `World`."""
        return sum(now_ns - device.began_ns for device in self.devices[at] if device.computing)

    def withdraw(self, node: PrefillNode) -> None:
        """See `World`: what it will compute now is foreseen when it begins."""
        node.expected_ns = UNSEEN

    def take_next(self, now_ns: int, node: PrefillNode) -> None:
        """See `World`."""
        device = _device(node)
        if (device.held and not len(self.backlogs[node.cluster])) or device.idle:
            assert isinstance(node, Slot)
            device.free.append(node)
            self._note(device)
            return
        device.idle = not len(self.backlogs[node.cluster])
        self._note(device)
        super().take_next(now_ns, node)

    def let_go(self, now_ns: int, node: PrefillNode) -> None:
        """See `World`."""
        assert isinstance(node, Slot)
        device = node.device
        if node.copy is not None:
            node.copy.line.abort(now_ns, node.copy)
            node.copy = None
        if node in device.turn:
            first = device.turn[0] is node
            device.turn.remove(node)
            device.work_ns -= sum(takes_ns for _, takes_ns in node.chunks)
            if first:
                node.busy_ns += now_ns - device.began_ns
                self._next_chunk(now_ns, device)
        node.running, node.chunks = None, []
        node.end_ns = node.expected_ns = UNSEEN
        device.held -= 1
        self._note(device)
        self._foresee(now_ns, device)

    def _start(self, now_ns: int, node: PrefillNode, request: Request) -> None:
        device = _device(node)
        device.held += 1
        device.idle = False
        self._note(device)
        super()._start(now_ns, node, request)

    def _compute(self, now_ns: int, node: PrefillNode, request: Request) -> None:
        assert isinstance(node, Slot)
        at, device, home = node.cluster, node.device, request.options[0]
        if self.caches:
            self._resume(request, at)
        uncached = request.uncached[at]
        cost = self.setup.clusters[at].prefill_ns
        node.chunks = chunks_of(cost, self._size, uncached, request.tokens)[::-1]
        if self._tiered and self.caches[at].wait_ns:  # the node waits with its first chunk
            end, takes_ns = node.chunks[-1]
            node.chunks[-1] = (end, takes_ns + self.caches[at].wait_ns)
        node.length = request.tokens - uncached
        work_ns = sum(takes_ns for _, takes_ns in node.chunks)
        request.prefill_ns[at] = work_ns
        if at != home:
            request.flow = self.lines[at, home].open(now_ns, request, request.kv_bytes[at])
            node.each = request.kv_bytes[at] / uncached
        device.work_ns += work_ns
        device.turn.append(node)
        if not device.computing:
            self._next_chunk(now_ns, device)
        self._foresee(now_ns, device)

    def _next_chunk(self, now_ns: int, device: Device) -> None:
        """The slot whose turn it is computes."""
        device.version += 1
        device.computing = bool(device.turn)
        device.began_ns = now_ns
        if not device.turn:
            return
        node = device.turn[0]
        end, takes_ns = node.chunks[-1]
        if node.slow != 1.0:
            takes_ns = int(takes_ns * node.slow)
        self._makes(now_ns, node, node.each * (end - node.length), takes_ns)
        self.later(now_ns + takes_ns, self._chunk_over, (device, device.version))

    def _chunk_over(self, now_ns: int, planned: tuple[Device, int]) -> None:
        device, version = planned
        if version != device.version:
            return
        node = device.turn.popleft()
        request = node.running
        assert request is not None
        node.length, takes_ns = node.chunks.pop()
        node.busy_ns += now_ns - device.began_ns
        device.work_ns -= takes_ns
        device.began_ns = now_ns
        if node.chunks:
            device.turn.append(node)
            self._makes(now_ns, node, 0, 0)
            if self.caches:
                self.caches[node.cluster].reach(request, node.length)
        else:
            node.end_ns = now_ns
            self._prefilled(now_ns, node)  # who begins here meanwhile waits for its turn
        self._next_chunk(now_ns, device)
        self._foresee(now_ns, device)

    def _makes(self, now_ns: int, node: Slot, kv_bytes: float, takes_ns: int) -> None:
        """What its chunk makes leaves, where another cluster wants it."""
        request = node.running
        assert request is not None
        home = request.options[0]
        if node.cluster != home:
            assert request.flow is not None
            self.lines[node.cluster, home].makes(now_ns, request.flow, kv_bytes, takes_ns)

    def _note(self, device: Device) -> None:
        """Whether it is among those with work and room."""
        found = self.open[device.cluster]
        wanted = device.held > 0 and bool(device.free)
        if wanted != (device in found):
            (found.append if wanted else found.remove)(device)

    def _foresee(self, now_ns: int, device: Device) -> None:
        """What policies see of it: one end a node, that of all its work."""
        done = device.done_ns(now_ns)
        if done == device.expected_ns:
            return
        backlog: Backlog = self.backlogs[device.cluster]
        if device.expected_ns != UNSEEN:
            backlog.ended(device.expected_ns)
        if done != UNSEEN:
            backlog.started(done)
        device.expected_ns = done


def _device(node: PrefillNode) -> Device:
    assert isinstance(node, Slot)
    return node.device
