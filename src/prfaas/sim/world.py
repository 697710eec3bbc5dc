"""The simulation: one heap of things to come, and what each does. All decisions are `core`'s.

It knows clusters, lines and requests; it does not know files, nor what is made of the tally. Time is whole nanoseconds;
of equal times what was planned first comes first. Entries of the heap are plain tuples of a time, a number, a
method and its argument: at 25,000 requests a second each costs what a request may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from prfaas.core.errors import InvariantError
from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.policy import IMPOSSIBLE, Answer, Policy
from prfaas.core.routing.uplink import Uplink
from prfaas.sim.arrivals import Arrival
from prfaas.sim.decode import DecodeNode, DecodePool
from prfaas.sim.faults import Fault
from prfaas.sim.line import Line
from prfaas.sim.prefixes import Prefixes
from prfaas.sim.request import UNSEEN, Request
from prfaas.sim.setup import ClusterSetup, Setup, remembered
from prfaas.sim.tally import Tally

Log = Callable[[int, int, str, str, tuple[float, ...]], None]
"""Told of each decision: when, the request's number, the cluster's name, the reason, the scores."""


class PrefillNode:
    """`end_ns`: when what runs will end; `expected_ns`: when policies expect it. `slow`: times as long."""

    __slots__ = ("at", "busy_ns", "cluster", "end_ns", "expected_ns", "number", "running", "slow", "up")

    def __init__(self, cluster: int, number: int) -> None:
        self.cluster = cluster
        self.number = number
        self.at = -1
        self.up = True
        self.running: Request | None = None
        self.end_ns = self.expected_ns = UNSEEN
        self.slow = 1.0
        self.busy_ns = 0


class World:
    """One run of `policy` over `arrivals` until `duration_ns`, and on until everybody has ended."""

    def __init__(
        self,
        setup: Setup,
        policy: Policy,
        arrivals: Iterator[Arrival],
        tally: Tally,
        *,
        duration_ns: int,
        warmup_ns: int = 0,
        faults: Sequence[Fault] = (),
        chance: Random | None = None,
        most: int | None = None,
        log: Log | None = None,
    ) -> None:
        self.setup, self.policy, self.tally, self.log = setup, policy, tally, log
        self.now_ns = 0
        self.events = 0
        self.alive = 0
        self.interrupted = False
        self.egress_bytes = 0.0
        self._heap: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._seq = count()
        self._numbers = count()
        self._arrivals, self._most = arrivals, most
        self._duration_ns, self._warmup_ns = duration_ns, warmup_ns
        self._chance = chance or Random(0)
        self._build(setup)
        for fault in faults:
            self._at(fault.at_ns, self._fault, (fault, True))
            self._at(fault.until_ns, self._fault, (fault, False))
        self._at(duration_ns, self._mark, None)
        self._come(0)

    def _build(self, setup: Setup) -> None:
        policy = self.policy
        self.backlogs = [Backlog(at, one.name, one.prefill, policy.order) for at, one in enumerate(setup.clusters)]
        self.nodes = [[PrefillNode(at, n) for n in range(one.prefill)] for at, one in enumerate(setup.clusters)]
        self.idle = [list(reversed(nodes)) for nodes in self.nodes]
        self._kv = remembered(setup.kv_bytes)
        self.caches = [Prefixes(setup.cache) for _ in setup.clusters] if setup.cache else []
        self.pools = [self._pool(one) for one in setup.clusters]
        self.lines: dict[tuple[int, int], Line] = {}
        for link in setup.links:
            uplink = Uplink(round(link.bps * (1 - link.loss)), link.rtt_ns)
            self.backlogs[link.source].links[link.target] = uplink
            self.backlogs[link.source].stuck[link.target] = {}
            self.lines[link.source, link.target] = Line(uplink, self._plan_line, self._drained)
        homes = setup.homes
        self._options: dict[int, tuple[int, ...]] = {}
        for home in homes:
            away = [link.source for link in setup.links if link.target == home]
            self._options[home] = (home, *away)
            if not any(setup.clusters[at].prefill for at in self._options[home]):
                raise InvariantError(f"nothing can prefill for {setup.clusters[home].name}")
        self._homes = homes
        self._shares = [setup.clusters[home].share for home in homes]
        self._prefill = [one.prefill_ns if one.prefill else None for one in setup.clusters]

    def _pool(self, one: ClusterSetup) -> DecodePool | None:
        if not one.decode:
            return None
        plan = self._plan_decode
        return DecodePool(one.decode, one.batch, one.memory, one.step_ns, one.flat_step_ns, self.setup.kv_bytes, plan)

    def run(self) -> None:
        """Until nothing is left to come. Ctrl-C ends it early, with what was computed."""
        heap, done = self._heap, 0
        try:
            while heap:
                now_ns, _, method, argument = heappop(heap)
                self.now_ns = now_ns
                done += 1
                method(now_ns, argument)
        except KeyboardInterrupt:
            self.interrupted = True
        self.events += done

    def validate(self) -> None:
        """Raises InvariantError when something is in two places, or beyond what there is."""
        for backlog, nodes in zip(self.backlogs, self.nodes, strict=True):
            backlog.validate()
            running = sorted(node.expected_ns for node in nodes if node.running is not None)
            if running != backlog.ends or backlog.nodes != sum(node.up for node in nodes):
                raise InvariantError(f"{backlog.name} does not know its nodes")
            if len(backlog) and any(node.up and node.running is None for node in nodes):
                raise InvariantError(f"work waits on {backlog.name} beside an idle node")
        for line in self.lines.values():
            line.validate()

    def _at(self, at_ns: int, method: Callable[[int, Any], None], argument: Any) -> None:
        heappush(self._heap, (at_ns, next(self._seq), method, argument))

    # -- a request's life

    def _come(self, now_ns: int) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None or arrival.at_ns >= self._duration_ns or self._most == 0:
            return
        if self._most is not None:
            self._most -= 1
        heappush(self._heap, (arrival.at_ns, next(self._seq), self._arrived, arrival))

    def _arrived(self, now_ns: int, arrival: Arrival) -> None:
        homes = self._homes
        home = homes[0] if len(homes) == 1 else self._chance.choices(homes, self._shares)[0]
        options = self._options[home]
        tokens = arrival.tokens
        clusters = len(self.backlogs)
        uncached, prefills, crossing = [tokens] * clusters, [IMPOSSIBLE] * clusters, [0] * clusters
        request = Request(next(self._numbers), now_ns, tokens, options, uncached, prefills, crossing)
        request.ready(arrival.output, arrival.blocks, now_ns >= self._warmup_ns)
        if self.caches:
            for at in options:
                uncached[at] = tokens - self.caches[at].usable(arrival.blocks, tokens)
        kv_bytes = self._kv(uncached[home])
        for at in options:
            cost = self._prefill[at]
            if cost is not None:
                prefills[at] = cost(uncached[at], tokens)
            if at != home:
                crossing[at] = kv_bytes
        self.alive += 1
        self.tally.came(now_ns)
        self._come(now_ns)
        self._place(now_ns, request)

    def _place(self, now_ns: int, request: Request) -> None:
        answer: Answer = self.policy.place(now_ns, request, self.backlogs)
        request.tries += 1
        self.tally.decided(answer.reason)
        at = answer.cluster
        backlog = self.backlogs[at]
        if self.log is not None:
            self.log(now_ns, request.number, backlog.name, answer.reason, answer.scores)
        if self.idle[at] and not len(backlog):
            self._start(now_ns, self.idle[at].pop(), request)
            return
        backlog.push(request)
        if self.policy.moves:
            for other in request.options:
                if other != at and self.idle[other]:
                    self._seek(now_ns, other)

    def _start(self, now_ns: int, node: PrefillNode, request: Request) -> None:
        at = node.cluster
        if self.caches:
            self._resume(request, at)
        takes_ns = request.prefill_ns[at]
        node.running = request
        node.expected_ns = now_ns + takes_ns
        node.end_ns = node.expected_ns if node.slow == 1.0 else now_ns + int(takes_ns * node.slow)
        node.at = now_ns
        request.where = -1
        if request.begun_ns == UNSEEN:
            request.begun_ns = now_ns
        self.backlogs[at].started(node.expected_ns)
        heappush(self._heap, (node.end_ns, next(self._seq), self._prefilled, node))
        home = request.options[0]
        if at != home:
            line = self.lines[at, home]
            request.flow = line.start(now_ns, request, request.kv_bytes[at], node.end_ns - now_ns)

    def _resume(self, request: Request, at: int) -> None:
        """What is cached now may differ from what was when it came."""
        tokens, blocks = request.tokens, request.blocks
        request.uncached[at] = uncached = tokens - self.caches[at].usable(blocks, tokens)
        cost = self._prefill[at]
        assert cost is not None
        request.prefill_ns[at] = cost(uncached, tokens)
        home = request.options[0]
        if at != home:
            request.kv_bytes[at] = self._kv(tokens - self.caches[home].usable(blocks, tokens))
        self.caches[at].begin(request)

    def _prefilled(self, now_ns: int, node: PrefillNode) -> None:
        request = node.running
        if request is None or node.end_ns != now_ns:
            return
        self._let_go(now_ns, node)
        at, home = node.cluster, request.options[0]
        if self.caches:
            self.caches[at].end(request)
        if request.counted:
            self.tally.cached_tokens += request.tokens - request.uncached[at]
            self.tally.prompt_tokens += request.tokens
        if at == home:
            if request.flow is not None:
                self._unstick(now_ns, request)
                self.tally.rescued += 1
            request.done_ns = now_ns
            request.away = False
            self._landed(now_ns, request)
        else:
            request.done_ns = now_ns
            request.away = True
            line = self.lines[at, home]
            assert request.flow is not None
            if line.finish(now_ns, request.flow):
                request.flow = None
                heappush(self._heap, (now_ns + line.uplink.rtt_ns, next(self._seq), self._landed, request))
            else:
                self.backlogs[at].stuck[home][request.number] = request
                if self.policy.moves and self.idle[home] and node.up:
                    self._seek(now_ns, home)
            if request.counted:
                self.tally.offloaded += 1
        if node.up:
            self._next(now_ns, node)

    def _let_go(self, now_ns: int, node: PrefillNode) -> None:
        self.backlogs[node.cluster].ended(node.expected_ns)
        node.busy_ns += now_ns - node.at
        node.running = None
        node.end_ns = node.expected_ns = UNSEEN

    def _drained(self, now_ns: int, item: object) -> None:
        """The last byte of a transfer that was behind has left."""
        assert isinstance(item, Request)
        request = item
        home = request.options[0]
        for at in request.options[1:]:
            if self.backlogs[at].stuck[home].pop(request.number, None) is not None:
                break
        request.flow = None
        self._end_rescue(now_ns, request)
        self._at(now_ns + self.backlogs[at].links[home].rtt_ns, self._landed, request)

    def _end_rescue(self, now_ns: int, request: Request) -> None:
        if request.rescuer >= 0:
            node = self.nodes[request.options[0]][request.rescuer]
            request.rescuer = -1
            self._let_go(now_ns, node)
            if self.caches:
                self.caches[node.cluster].drop(request)
            if node.up:
                self._next(now_ns, node)

    def _unstick(self, now_ns: int, request: Request) -> None:
        """Its KV need not cross any more."""
        home = request.options[0]
        for at in request.options[1:]:
            if self.backlogs[at].stuck[home].pop(request.number, None) is not None:
                assert request.flow is not None
                self.lines[at, home].abort(now_ns, request.flow)
        request.flow, request.rescuer = None, -1

    def _landed(self, now_ns: int, request: Request) -> None:
        request.landed_ns = now_ns
        if self.caches and request.away:
            self.caches[request.options[0]].receive(request)
        pool = self.pools[request.options[0]]
        assert pool is not None
        pool.join(now_ns, request)

    def _decoded(self, now_ns: int, planned: tuple[DecodePool, DecodeNode]) -> None:
        pool, node = planned
        ended, _ = pool.tick(now_ns, node)
        for request in ended:
            self.alive -= 1
            self.tally.finished(now_ns, request)

    # -- nodes that look for work

    def _next(self, now_ns: int, node: PrefillNode) -> None:
        at = node.cluster
        backlog = self.backlogs[at]
        if len(backlog):
            request = backlog.pop()
            assert isinstance(request, Request)
            self._start(now_ns, node, request)
            return
        self.idle[at].append(node)
        if self.policy.moves:
            self._seek(now_ns, at)

    def _seek(self, now_ns: int, at: int) -> None:
        """Idle nodes of the cluster take from others what the policy lets them."""
        idle, policy = self.idle[at], self.policy
        while idle and not len(self.backlogs[at]):
            job = policy.claim(now_ns, at, self.backlogs)
            if job is None:
                break
            assert isinstance(job, Request)
            if not self.backlogs[job.where].claim(job, job.epoch):
                raise InvariantError(f"request {job.number} was offered but does not wait")
            self.tally.moved += 1
            if self.log is not None:
                self.log(now_ns, job.number, self.backlogs[at].name, "claimed", ())
            self._start(now_ns, idle.pop(), job)
        if not idle or at not in self._options:
            return
        while idle and (stuck := policy.rescue(now_ns, at, self.backlogs)) is not None:
            assert isinstance(stuck, Request)
            if stuck.rescuer >= 0:
                break
            node = idle.pop()
            stuck.rescuer = node.number
            flow = stuck.flow
            if self.log is not None:
                self.log(now_ns, stuck.number, self.backlogs[at].name, "rescued", ())
            self._start(now_ns, node, stuck)
            stuck.flow = flow

    # -- plans and faults

    def _plan_line(self, line: Line, at_ns: int, version: int) -> None:
        self._at(at_ns, self._line_tick, (line, version))

    def _line_tick(self, now_ns: int, planned: tuple[Line, int]) -> None:
        planned[0].tick(now_ns, planned[1])

    def _plan_decode(self, at_ns: int, pool: DecodePool, node: DecodeNode) -> None:
        heappush(self._heap, (at_ns, next(self._seq), self._decoded, (pool, node)))

    def _mark(self, now_ns: int, _: None) -> None:
        """The end of what is measured of lines."""
        for line in self.lines.values():
            line.book(now_ns)
        self.egress_bytes = sum(line.total for line in self.lines.values())

    def _fault(self, now_ns: int, what: tuple[Fault, bool]) -> None:
        fault, begins = what
        at = self._named(fault.cluster)
        match fault.kind:
            case "node_down":
                self._switch(now_ns, [self.nodes[at][fault.node]], not begins)
            case "service_down":
                self._switch(now_ns, self.nodes[at], not begins)
            case "slow_node":
                self.nodes[at][fault.node].slow = fault.factor if begins else 1.0
            case "link":
                home = self._named(fault.target)
                link = next(one for one in self.setup.links if (one.source, one.target) == (at, home))
                bps = fault.bps if begins else round(link.bps * (1 - link.loss))
                self.lines[at, home].carries(now_ns, bps)
            case "decode_down":
                self._switch_decode(now_ns, at, fault.node, not begins)
        if self.policy.moves:
            for one in range(len(self.backlogs)):
                self._seek(now_ns, one)

    def _named(self, name: str) -> int:
        return next(at for at, one in enumerate(self.setup.clusters) if one.name == name)

    def _switch(self, now_ns: int, nodes: Sequence[PrefillNode], up: bool) -> None:
        again: list[Request] = []
        for node in nodes:
            if node.up == up:
                continue
            node.up = up
            backlog = self.backlogs[node.cluster]
            backlog.nodes += 1 if up else -1
            if up:
                self._next(now_ns, node)
            elif (request := node.running) is not None:
                self._let_go(now_ns, node)
                if self.caches:
                    self.caches[node.cluster].drop(request)
                if request.rescuer >= 0:
                    request.rescuer = -1
                    continue
                if request.flow is not None:
                    self.lines[node.cluster, request.options[0]].abort(now_ns, request.flow)
                    request.flow = None
                again.append(request)
            else:
                self.idle[node.cluster].remove(node)
        at = nodes[0].cluster
        if not self.backlogs[at].nodes:
            again += [job for job in self.backlogs[at].drop_all() if isinstance(job, Request)]
        for request in again:
            self.tally.retried += 1
            self._place(now_ns, request)

    def _switch_decode(self, now_ns: int, at: int, number: int, up: bool) -> None:
        pool = self.pools[at]
        assert pool is not None
        node = pool.nodes[number]
        if up:
            node.up = True
            pool.admit(now_ns)
            return
        for request in pool.lose(node):
            request.first_ns = UNSEEN
            self.tally.retried += 1
            self._place(now_ns, request)
