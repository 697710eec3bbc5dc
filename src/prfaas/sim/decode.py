"""The decode nodes of one cluster: sequences join at the next step, every step gives each of them a token.

It knows steps, batches and memory; it does not know prefill or links. A node's step takes as long as its batch and mean
context say, from the step after the change on, so it is exact in whole nanoseconds and costs nothing between changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from prfaas.sim.request import Request

StepNs = Callable[[int, int], int]
"""Of a batch of so many sequences with so many tokens each on average."""


class DecodeNode:
    """`active` sequences. Step number `steps` ends at `base_ns`; the next ones take `step_ns` each. `then`: what it
    leaves for, once it is empty."""

    __slots__ = ("active", "base_ns", "bytes", "context", "ends", "planned_ns", "step_ns", "steps", "then", "up")

    def __init__(self) -> None:
        self.active = 0
        self.base_ns = 0
        self.steps = 0
        self.step_ns = 1
        self.context = 0
        self.bytes = 0
        self.planned_ns = -1
        self.up = True
        self.then: Callable[[int], None] | None = None
        self.ends: list[tuple[int, int, Request]] = []


class DecodePool:
    """`batch`: sequences a node runs at once; `memory`: bytes of KV it holds, None: no bound. `flat_ns`: what a step
    takes if batch and context do not matter, else None. `plan(at_ns, node)`: call `tick` then."""

    def __init__(
        self,
        nodes: int,
        batch: int,
        memory: int | None,
        step_ns: StepNs,
        flat_ns: int | None,
        kv_bytes: Callable[[int], int],
        plan: Callable[[int, DecodePool, DecodeNode], None],
    ) -> None:
        self.nodes = [DecodeNode() for _ in range(nodes)]
        self.batch = batch
        self.memory = memory
        self.waiting: deque[Request] = deque()
        self._step_ns = step_ns
        self._flat_ns = flat_ns
        self._kv_bytes = kv_bytes
        self._plan = plan

    def __len__(self) -> int:
        return sum(node.active for node in self.nodes)

    def join(self, now_ns: int, request: Request) -> bool:
        """Begin to decode `request`, whose KV is here; False: it waits for a node."""
        if self.waiting or (node := self._room(request)) is None:
            self.waiting.append(request)
            return False
        self._enter(now_ns, node, request)
        return True

    def tick(self, now_ns: int, node: DecodeNode) -> tuple[list[Request], list[Request]]:
        """What was planned for `node` is due: who has ended, and who of the waiting joined."""
        if node.planned_ns != now_ns:
            return [], []
        node.planned_ns = -1
        self._catch_up(now_ns, node)
        ended = []
        ends, steps = node.ends, node.steps
        while ends and ends[0][0] <= steps:
            request = heappop(ends)[2]
            self._leave(node, request)
            ended.append(request)
        joined = self.admit(now_ns) if self.waiting else []
        if ended:
            self._pace(node)
            self._replan(node)
        return ended, joined

    def admit(self, now_ns: int) -> list[Request]:
        """Let in who waits, as far as there is room."""
        joined = []
        while self.waiting and (free := self._room(self.waiting[0])) is not None:
            request = self.waiting.popleft()
            self._enter(now_ns, free, request)
            joined.append(request)
        return joined

    def lose(self, node: DecodeNode) -> list[Request]:
        """The node is gone: whom it decoded."""
        lost = [request for _, _, request in sorted(node.ends, key=lambda end: end[1])]
        for request in lost:
            self._leave(node, request)
        node.ends, node.planned_ns, node.up = [], -1, False
        return lost

    def _room(self, request: Request) -> DecodeNode | None:
        best = None
        least = self.batch
        for node in self.nodes:
            if node.active < least and node.up:
                if self.memory is not None and node.bytes + self._bytes(request) > self.memory and node.active:
                    continue
                best, least = node, node.active
        return best

    def _bytes(self, request: Request) -> int:
        return self._kv_bytes(request.tokens + request.output)

    def _enter(self, now_ns: int, node: DecodeNode, request: Request) -> None:
        if node.active:
            self._catch_up(now_ns, node)
        else:
            node.base_ns = now_ns
        node.active += 1
        node.context += request.tokens + request.output // 2
        if self.memory is not None:
            node.bytes += self._bytes(request)
        end = (node.steps + request.output, request.number, request)
        heappush(node.ends, end)
        self._pace(node)
        request.first_ns = node.base_ns + node.step_ns
        if self._flat_ns is None or node.ends[0] is end:  # else the next to end is who it was
            self._replan(node)

    def _leave(self, node: DecodeNode, request: Request) -> None:
        node.active -= 1
        node.context -= request.tokens + request.output // 2
        if self.memory is not None:
            node.bytes -= self._bytes(request)

    def _catch_up(self, now_ns: int, node: DecodeNode) -> None:
        """Count the steps until now; one that runs is counted with its end, since whoever comes joins after it."""
        if node.active and now_ns > node.base_ns:
            steps = -(-(now_ns - node.base_ns) // node.step_ns)
            node.steps += steps
            node.base_ns += steps * node.step_ns

    def _pace(self, node: DecodeNode) -> None:
        if self._flat_ns is not None:
            node.step_ns = self._flat_ns
        elif node.active:
            node.step_ns = self._step_ns(node.active, node.context // node.active)

    def _replan(self, node: DecodeNode) -> None:
        if not node.ends:
            return
        at_ns = node.base_ns + (node.ends[0][0] - node.steps) * node.step_ns
        if at_ns != node.planned_ns:
            node.planned_ns = at_ns
            self._plan(at_ns, self, node)
