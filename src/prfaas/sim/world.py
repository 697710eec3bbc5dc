"""The simulation: one heap of things to come, and what each does. All decisions are `core`'s.

It knows clusters, lines and requests; it does not know files, nor what is made of the tally. Time is whole nanoseconds;
of equal times what was planned first comes first. Entries of the heap are plain tuples of a time, a number, a
method and its argument: at 25,000 requests a second each costs what a request may. One file, long as it is: one
request's life from arrival to its last token, each step planning the next. Faults, nodes and lines have their own.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from prfaas.core.errors import InvariantError
from prfaas.core.routing.backlog import Backlog
from prfaas.core.routing.copying import with_copy_ns
from prfaas.core.routing.policy import IMPOSSIBLE, Answer, Policy
from prfaas.core.routing.uplink import Uplink
from prfaas.sim.arrivals import Arrival
from prfaas.sim.balance import Balance, BalanceSetup
from prfaas.sim.decode import DecodeNode, DecodePool
from prfaas.sim.faults import Fault
from prfaas.sim.line import Line
from prfaas.sim.nodes import Copy, PrefillNode
from prfaas.sim.prefixes import Prefixes
from prfaas.sim.request import UNSEEN, Request
from prfaas.sim.roles import Roles
from prfaas.sim.sessions import Sessions
from prfaas.sim.setup import ClusterSetup, Setup
from prfaas.sim.tally import Tally
from prfaas.sim.tiers import TieredPrefixes
from prfaas.sim.trouble import Trouble

Log = Callable[[int, int, str, str, tuple[float, ...]], None]
"""Told of each decision: when, the request's number, the cluster's name, the reason, the scores."""


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
        sessions: Sessions | None = None,
        balance: BalanceSetup | None = None,
        log: Log | None = None,
    ) -> None:
        self.setup, self.policy, self.tally, self.log = setup, policy, tally, log
        self.now_ns = 0
        self.events = 0
        self.alive = 0
        self.interrupted = False
        self.egress_bytes = 0.0
        self.worked: list[tuple[int, int]] = []
        self.notes: list[str] = []
        self._heap: list[tuple[int, int, Callable[[int, Any], None], Any]] = []
        self._seq = count()
        self._numbers = count()
        self._arrivals, self._sessions = arrivals, sessions
        self.duration_ns, self._warmup_ns = duration_ns, warmup_ns
        self._chance = chance or Random(0)
        self._build(setup)
        self.roles = Roles(self)
        self.balance: Balance | None = None
        if balance is not None:
            self.balance = Balance(self, balance)
        Trouble(self).plan(faults)
        self.later(duration_ns, self._mark, None)
        self.later(tally.window_ns, self._sample, tally.window_ns)
        if sessions is None:
            self._come(0)
        else:
            for arrival in sessions.first():
                self.later(arrival.at_ns, self._arrived, arrival)

    def _build(self, setup: Setup) -> None:
        policy = self.policy
        self.backlogs = [Backlog(at, one.name, one.prefill, policy.order) for at, one in enumerate(setup.clusters)]
        self.nodes: list[list[PrefillNode]] = [[] for _ in setup.clusters]
        self.idle: list[list[PrefillNode]] = [[] for _ in setup.clusters]
        self.open: list[list[Any]] = [[] for _ in setup.clusters]  # nodes with work and room for more
        self._kv = setup.kv_bytes
        self.caches = [self.cache(setup) for _ in setup.clusters] if setup.cache else []
        self._lease_ns = setup.cache.lease_ns if setup.cache else 0
        self._tiered = setup.cache is not None and setup.cache.host is not None
        self.pools = [self._pool(one) for one in setup.clusters]
        self.lines: dict[tuple[int, int], Line] = {}
        for link in setup.links:
            uplink = Uplink(round(link.bps * (1 - link.loss)), link.rtt_ns)
            self.backlogs[link.source].links[link.target] = uplink
            if setup.clusters[link.target].decode:
                self.backlogs[link.source].stuck[link.target] = {}
            self.lines[link.source, link.target] = Line(uplink, self._plan_line, self._drained)
        self._sources = [
            [link.source for link in setup.links if link.target == at] for at in range(len(setup.clusters))
        ]
        homes = setup.homes
        self._options: dict[int, tuple[int, ...]] = {}
        for home in homes:
            away = self._sources[home]
            self._options[home] = (home, *away)
            if not any(setup.clusters[at].prefill for at in self._options[home]):
                raise InvariantError(f"nothing can prefill for {setup.clusters[home].name}")
        self._homes = homes
        self._to_homes = [line for (_, to), line in self.lines.items() if to in homes]
        self._shares = [setup.clusters[home].share for home in homes]
        self._prefill = [one.prefill_ns if one.prefill else None for one in setup.clusters]
        for at, one in enumerate(setup.clusters):
            for _ in range(one.prefill):
                self.add_node(at)
            self.idle[at].reverse()

    def _pool(self, one: ClusterSetup) -> DecodePool | None:
        if not one.decode:
            return None
        plan = self._plan_decode
        return DecodePool(one.decode, one.batch, one.memory, one.step_ns, one.flat_step_ns, self.setup.kv_bytes, plan)

    def sources(self, home: int) -> tuple[int, ...]:
        """The clusters that prefill for `home`, besides itself."""
        return self._options[home][1:]

    # -- what `chunked` does otherwise

    def add_node(self, at: int) -> list[PrefillNode]:
        """One more, without work: its places for prompts."""
        node = PrefillNode(at, len(self.nodes[at]), self.now_ns)
        self.nodes[at].append(node)
        self.idle[at].append(node)
        return [node]

    def places(self, at: int, number: int) -> list[PrefillNode]:
        """The places for prompts of node `number`."""
        return [self.nodes[at][number]]

    def count(self, at: int) -> int:
        """How many prefill nodes there ever were."""
        return len(self.nodes[at])

    def retire(self, node: PrefillNode) -> None:
        """It has no work, and gets none."""
        self.idle[node.cluster].remove(node)

    def beside(self, at: int) -> PrefillNode:
        """Of the `open` nodes: a place beside others' work."""
        raise InvariantError("nodes without chunks hold one prompt")

    def cache(self, setup: Setup) -> Prefixes:
        """Of one cluster."""
        assert setup.cache is not None
        return Prefixes(setup.cache) if setup.cache.host is None else TieredPrefixes(setup.cache)

    def promise(self, node: PrefillNode, end_ns: int) -> None:
        """Policies see that it will have work until then."""
        node.expected_ns = end_ns
        self.backlogs[node.cluster].started(end_ns)

    def promised(self, at: int) -> tuple[list[int], int]:
        """When each node of a cluster that has work will be done, and how many take work."""
        nodes = self.nodes[at]
        return sorted(node.expected_ns for node in nodes if node.running is not None), sum(node.up for node in nodes)

    def working_ns(self, at: int, now_ns: int) -> int:
        """What its nodes have spent until now on what they have not ended."""
        return sum(now_ns - node.at for node in self.nodes[at] if node.running is not None)

    def withdraw(self, node: PrefillNode) -> None:
        """What was promised is over."""
        self.backlogs[node.cluster].ended(node.expected_ns)

    @property
    def closed(self) -> bool:
        """Whether who asks waits for the answer first."""
        return self._sessions is not None

    @property
    def stuck(self) -> int:
        """Once it has run: requests that can never end, since nothing is left to come."""
        return 0 if self.interrupted else self.alive

    def run(self) -> None:
        """Until nothing is left to come. Ctrl-C ends it early, with what was computed.

        Requests, transfers and prefixes make no cycles, so the collector of cycles, which would walk through all that
        is alive again and again, rests meanwhile.
        """
        heap = self._heap
        collects = gc.isenabled()
        gc.disable()
        try:
            while heap:
                now_ns, _, method, argument = heappop(heap)
                self.now_ns = now_ns
                method(now_ns, argument)
        except KeyboardInterrupt:
            self.interrupted = True
        finally:
            if collects:
                gc.enable()
        if not self.worked:
            self._count_work(self.now_ns)
        self.events = next(self._seq) - len(heap)

    def validate(self) -> None:
        """Raises InvariantError when something is in two places, or beyond what there is."""
        for at, (backlog, nodes) in enumerate(zip(self.backlogs, self.nodes, strict=True)):
            backlog.validate()
            if self.promised(at) != (backlog.ends, backlog.nodes):
                raise InvariantError(f"{backlog.name} does not know its nodes")
            if len(backlog) and any(node.up and node.running is None for node in nodes):
                raise InvariantError(f"work waits on {backlog.name} beside an idle node")
        for line in self.lines.values():
            line.validate()

    def later(self, at_ns: int, method: Callable[[int, Any], None], argument: Any) -> None:
        """`method(at_ns, argument)` will be called then."""
        heappush(self._heap, (at_ns, next(self._seq), method, argument))

    # -- a request's life

    def _come(self, now_ns: int) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None or arrival.at_ns >= self.duration_ns:
            return
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
            self._price(now_ns, request)
        kv_bytes = self._kv(uncached[home])
        for at in options:
            cost = self._prefill[at]
            if cost is not None and not self.caches:
                prefills[at] = cost(tokens, tokens)
            if at != home:
                crossing[at] = kv_bytes
        if self.balance is not None:
            self.balance.measured.arrived(now_ns, uncached[home], tokens)
        self.alive += 1
        self.tally.came(now_ns)
        if arrival.session < 0:
            self._come(now_ns)
        else:
            request.session = arrival.session
        self.place(now_ns, request)

    def _price(self, now_ns: int, request: Request) -> None:
        """Prefill times with what each cluster holds, or what it would hold if the longest prefix were copied there."""
        tokens, uncached, tiered = request.tokens, request.uncached, self._tiered
        for at in request.options:
            cost = self._prefill[at]
            if cost is None:
                continue
            own = self._own_ns(at, request) if tiered else cost(uncached[at], tokens)
            copied = self._copied_ns(now_ns, request, at, own)
            request.prefill_ns[at] = own if copied is None else copied[0]

    def _own_ns(self, at: int, request: Request) -> int:
        """Prefill with what the cluster holds, what comes from its host included where that is sooner."""
        cost = self._prefill[at]
        assert cost is not None
        own = cost(request.uncached[at], request.tokens)
        if self._tiered:
            cache = self.caches[at]
            wait_ns = cache.fetch_ns(request.blocks, request.tokens)
            if wait_ns:
                own += wait_ns
                without = cost(request.tokens - cache.near(request.blocks, request.tokens), request.tokens)
                cache.fetches = own <= without
                return min(own, without)
            cache.fetches = True
        return own

    def _copied_ns(self, now_ns: int, request: Request, at: int, own: int) -> tuple[int, int, int] | None:
        """(time, source, bytes) of copying a longer prefix first, where that is sooner."""
        uncached = request.uncached
        source = min(self._sources[at], key=uncached.__getitem__, default=at)
        more = uncached[at] - uncached[source]
        if source not in request.options or more <= 0:
            return None
        cost = self._prefill[at]
        assert cost is not None
        kv_bytes = self._kv(more)
        shorter = cost(uncached[source], request.tokens)
        whole = with_copy_ns(now_ns, self.lines[source, at].uplink, kv_bytes, own, shorter)
        return None if whole is None else (whole, source, kv_bytes)

    def place(self, now_ns: int, request: Request) -> None:
        """The policy says where it goes."""
        for line in self._to_homes:
            if not line.calm:
                line.book(now_ns)
        answer: Answer = self.policy.place(now_ns, request, self.backlogs)
        request.tries += 1
        self.tally.decided(answer.reason)
        at = answer.cluster
        backlog = self.backlogs[at]
        if self.log is not None:
            self.log(now_ns, request.number, backlog.name, answer.reason, answer.scores)
        if not len(backlog):
            if self.idle[at]:
                self._start(now_ns, self.idle[at].pop(), request)
                return
            if self.open[at]:
                self._start(now_ns, self.beside(at), request)
                return
        backlog.push(request)
        if self.policy.moves:
            for other in request.options:
                if other != at and self.idle[other]:
                    self.seek(now_ns, other)

    def _start(self, now_ns: int, node: PrefillNode, request: Request) -> None:
        node.running = request
        if request.begun_ns == UNSEEN:
            request.begun_ns = now_ns
        request.where = -1
        node.at = now_ns
        if self.caches and self._copies(now_ns, node, request):
            return
        self._compute(now_ns, node, request)

    def _copies(self, now_ns: int, node: PrefillNode, request: Request) -> bool:
        """True: a longer prefix is on its way from elsewhere, and prefill waits for it."""
        at, tokens = node.cluster, request.tokens
        self._look(request)
        own = self._own_ns(at, request)
        copied = self._copied_ns(now_ns, request, at, own)
        if copied is None:
            return False
        whole, source, kv_bytes = copied
        self.tally.copied += 1
        self.tally.copied_bytes += kv_bytes
        copy = Copy(node, request, tokens - request.uncached[at], tokens - request.uncached[source])
        node.copy = self.lines[source, at].send(now_ns, copy, kv_bytes)
        self.promise(node, now_ns + whole)
        return True

    def _copied(self, now_ns: int, copy: Copy) -> None:
        """A prefix has come: prefill begins."""
        node, request = copy.node, copy.request
        flow, copy.flow = copy.flow, None
        if node.running is not request or node.copy is not flow:
            return
        node.copy = None
        at = node.cluster
        self.caches[at].take(request, copy.had, copy.length)
        self.withdraw(node)
        self._look(request)
        self._compute(now_ns, node, request)

    def _look(self, request: Request) -> None:
        """What is cached now may differ from what was when it came."""
        tokens, blocks = request.tokens, request.blocks
        for one in request.options:
            request.uncached[one] = tokens - self.caches[one].usable(blocks, tokens)

    def _compute(self, now_ns: int, node: PrefillNode, request: Request) -> None:
        at = node.cluster
        if self.caches:
            self._resume(request, at)
        takes_ns = request.prefill_ns[at]
        node.expected_ns = now_ns + takes_ns
        node.end_ns = node.expected_ns if node.slow == 1.0 else now_ns + int(takes_ns * node.slow)
        self.backlogs[at].started(node.expected_ns)
        heappush(self._heap, (node.end_ns, next(self._seq), self._prefilled, node))
        home = request.options[0]
        if at != home:
            line = self.lines[at, home]
            request.flow = line.start(now_ns, request, request.kv_bytes[at], node.end_ns - now_ns)

    def _resume(self, request: Request, at: int) -> None:
        """Prefill time and bytes to send, by what the caches give now, which may not be what they had before."""
        cost, tokens, uncached = self._prefill[at], request.tokens, request.uncached
        assert cost is not None
        if self._tiered:
            uncached[at] = tokens - self.caches[at].usable(request.blocks, tokens)
            self._own_ns(at, request)  # says whether it is worth fetching
        uncached[at] = tokens - self.caches[at].begin(request)
        request.prefill_ns[at] = cost(uncached[at], tokens) + self.caches[at].wait_ns
        home = request.options[0]
        if at != home:
            uncached[home] = tokens - self.caches[home].expect(request)
            request.kv_bytes[at] = self._kv(uncached[home])

    def _prefilled(self, now_ns: int, node: PrefillNode) -> None:
        request = node.running
        if request is None or node.end_ns != now_ns:
            return
        self.let_go(now_ns, node)
        at, home = node.cluster, request.options[0]
        if self.caches:
            if at == home:
                self.caches[at].end(request)
            else:
                self.caches[at].ship(now_ns, request)
        if request.counted:
            self.tally.cached_tokens += request.tokens - request.uncached[at]
            self.tally.prompt_tokens += request.tokens
        if at == home:
            if request.flow is not None:
                self._unstick(now_ns, request)
                self.tally.rescued += 1
            request.done_ns = now_ns
            request.source = -1
            self._landed(now_ns, request)
        else:
            request.done_ns = now_ns
            request.source = at
            line = self.lines[at, home]
            assert request.flow is not None
            if line.finish(now_ns, request.flow):
                request.flow = None
                heappush(self._heap, (now_ns + line.uplink.rtt_ns, next(self._seq), self._landed, request))
            else:
                self.backlogs[at].stuck[home][request.number] = request
                if self.caches:
                    self.later(now_ns + self._lease_ns, self._lease_over, at)
                if self.policy.moves and self.idle[home] and node.up:
                    self.seek(now_ns, home)
        if node.up:
            self.take_next(now_ns, node)
        elif node.then is not None:
            node.then(now_ns)

    def let_go(self, now_ns: int, node: PrefillNode) -> None:
        """Whatever it worked on, it does not any more."""
        self.backlogs[node.cluster].ended(node.expected_ns)
        node.busy_ns += now_ns - node.at
        if node.copy is not None:
            node.copy.line.abort(now_ns, node.copy)
            node.copy = None
        node.running = None
        node.end_ns = node.expected_ns = UNSEEN

    def _drained(self, now_ns: int, item: object) -> None:
        """The last byte of a transfer that was behind has left."""
        if isinstance(item, Copy):
            assert item.node.copy is not None
            item.flow = item.node.copy
            self.later(now_ns + item.flow.line.uplink.rtt_ns, self._copied, item)
            return
        assert isinstance(item, Request)
        request = item
        home = request.options[0]
        for at in request.options[1:]:
            if self.backlogs[at].stuck[home].pop(request.number, None) is not None:
                break
        request.flow = None
        self._end_rescue(now_ns, request)
        self.later(now_ns + self.backlogs[at].links[home].rtt_ns, self._landed, request)

    def _end_rescue(self, now_ns: int, request: Request) -> None:
        if request.rescuer >= 0:
            node = self.nodes[request.options[0]][request.rescuer]
            request.rescuer = -1
            self.let_go(now_ns, node)
            if self.caches:
                self.caches[node.cluster].drop(request)
            if node.up:
                self.take_next(now_ns, node)
            elif node.then is not None:
                node.then(now_ns)

    def _unstick(self, now_ns: int, request: Request) -> None:
        """Its KV need not cross any more."""
        home = request.options[0]
        for at in request.options[1:]:
            if self.backlogs[at].stuck[home].pop(request.number, None) is not None:
                self._cross_no_more(now_ns, at, request)
        request.flow, request.rescuer = None, -1

    def _cross_no_more(self, now_ns: int, at: int, request: Request) -> None:
        """Its KV, which was on its way from there, is not wanted, or not there, any more."""
        home = request.options[0]
        assert request.flow is not None
        self.lines[at, home].abort(now_ns, request.flow)
        request.flow = None
        if self.caches:
            self.caches[at].landed(request)
            self.caches[home].give_up(request)

    def _lease_over(self, now_ns: int, at: int) -> None:
        """Who holds KV for others frees what has not landed in time: it is made again, unless it is already."""
        for number in self.caches[at].expire(now_ns):
            for stuck in self.backlogs[at].stuck.values():
                request = stuck.pop(number, None)
                if request is None:
                    continue
                assert isinstance(request, Request)
                self._cross_no_more(now_ns, at, request)
                self.tally.expired += 1
                if request.rescuer >= 0:
                    request.rescuer = -1
                else:
                    self.again(now_ns, request)

    def again(self, now_ns: int, request: Request) -> None:
        """It lost what was computed of it, or the node that it waited for."""
        self.tally.retried += 1
        self.place(now_ns, request)

    def _landed(self, now_ns: int, request: Request) -> None:
        request.landed_ns = now_ns
        if self.caches and request.source >= 0:
            self.caches[request.source].landed(request)
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
            if self.balance is not None:
                self.balance.measured.ended(now_ns, request.output)
            if request.session >= 0:
                self._ask_again(now_ns, request)
        if node.then is not None and not node.active:
            node.then(now_ns)

    def _ask_again(self, now_ns: int, request: Request) -> None:
        assert self._sessions is not None
        arrival = self._sessions.after(now_ns, request)
        if arrival.at_ns < self.duration_ns:
            self.later(arrival.at_ns, self._arrived, arrival)

    # -- nodes that look for work

    def take_next(self, now_ns: int, node: PrefillNode) -> None:
        """It has no work: what waits here, or elsewhere."""
        at = node.cluster
        backlog = self.backlogs[at]
        if len(backlog):
            request = backlog.pop()
            assert isinstance(request, Request)
            self._start(now_ns, node, request)
            return
        self.idle[at].append(node)
        if self.policy.moves:
            self.seek(now_ns, at)

    def seek(self, now_ns: int, at: int) -> None:
        """Idle nodes of the cluster take from others what the policy lets them."""
        idle, policy = self.idle[at], self.policy
        for line in self._to_homes:
            if idle and not line.calm:
                line.book(now_ns)
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

    # -- plans

    def _plan_line(self, line: Line, at_ns: int, version: int) -> None:
        self.later(at_ns, self._line_tick, (line, version))

    def _line_tick(self, now_ns: int, planned: tuple[Line, int]) -> None:
        planned[0].tick(now_ns, planned[1])

    def _plan_decode(self, at_ns: int, pool: DecodePool, node: DecodeNode) -> None:
        heappush(self._heap, (at_ns, next(self._seq), self._decoded, (pool, node)))

    def _sample(self, now_ns: int, window_ns: int) -> None:
        """A point of the time series: who waits for prefill, and what has crossed links so far."""
        for line in self.lines.values():
            line.book(now_ns)
        sent = sum(line.total for line in self._to_homes)
        self.tally.series.append((now_ns, [len(backlog) for backlog in self.backlogs], sent))
        if now_ns + window_ns <= self.duration_ns:
            self.later(now_ns + window_ns, self._sample, window_ns)

    def _mark(self, now_ns: int, _: None) -> None:
        """The end of what is measured of lines and nodes."""
        self._count_work(now_ns)
        for line in self.lines.values():
            line.book(now_ns)
        self.egress_bytes = sum(line.total for line in self._to_homes)

    def _count_work(self, now_ns: int) -> None:
        """By cluster: ns that its prefill nodes worked until now, and ns of all of them while they had that role."""
        found = []
        for at, nodes in enumerate(self.nodes):
            firsts = [self.places(at, number)[0] for number in range(self.count(at))]
            there = sum((now_ns if one.left_ns == UNSEEN else one.left_ns) - one.came_ns for one in firsts)
            found.append((sum(node.busy_ns for node in nodes) + self.working_ns(at, now_ns), there))
        self.worked = found
