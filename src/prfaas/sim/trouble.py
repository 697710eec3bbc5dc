"""What goes wrong in a world, and role changes: nodes and links that come and go on a schedule.

It knows what a fault does to nodes, queues and lines. Everybody whose work is lost is placed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prfaas.core.errors import InvariantError
from prfaas.sim.decode import DecodeNode, DecodePool
from prfaas.sim.faults import Fault
from prfaas.sim.nodes import PrefillNode
from prfaas.sim.request import UNSEEN, Request

if TYPE_CHECKING:
    from prfaas.sim.world import World


class Trouble:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def plan(self, faults: Sequence[Fault]) -> None:
        """All of them, each with its end."""
        for fault in faults:
            self.world.later(fault.at_ns, self._begin, fault)
            if fault.kind not in ("to_prefill", "to_decode"):
                self.world.later(fault.until_ns, self._end, fault)

    def _begin(self, now_ns: int, fault: Fault) -> None:
        self._change(now_ns, fault, begins=True)

    def _end(self, now_ns: int, fault: Fault) -> None:
        self._change(now_ns, fault, begins=False)

    def _change(self, now_ns: int, fault: Fault, *, begins: bool) -> None:
        world, at = self.world, self._named(fault.cluster)
        match fault.kind:
            case "node_down":
                self._switch(now_ns, [world.nodes[at][fault.node]], not begins)
            case "service_down":
                self._switch(now_ns, world.nodes[at], not begins)
            case "slow_node":
                world.nodes[at][fault.node].slow = fault.factor if begins else 1.0
            case "link":
                home = self._named(fault.target)
                link = next(one for one in world.setup.links if (one.source, one.target) == (at, home))
                bps = fault.bps if begins else round(link.bps * (1 - link.loss))
                world.lines[at, home].carries(now_ns, bps)
            case "decode_down":
                self._switch_decode(now_ns, at, fault.node, not begins)
            case "to_prefill":
                self._to_prefill(now_ns, at, fault)
            case "to_decode":
                self._to_decode(now_ns, at, fault)
        if world.policy.moves:
            for one in range(len(world.backlogs)):
                world.seek(now_ns, one)

    def _named(self, name: str) -> int:
        return next(at for at, one in enumerate(self.world.setup.clusters) if one.name == name)

    def _switch(self, now_ns: int, nodes: Sequence[PrefillNode], up: bool) -> None:
        world = self.world
        again: list[Request] = []
        for node in nodes:
            if node.up == up or node.then is not None:
                continue
            node.up = up
            backlog = world.backlogs[node.cluster]
            backlog.nodes += 1 if up else -1
            if up:
                world.take_next(now_ns, node)
            elif (request := node.running) is not None:
                world.let_go(now_ns, node)
                if world.caches:
                    world.caches[node.cluster].drop(request)
                if request.rescuer >= 0:
                    request.rescuer = -1
                    continue
                if request.flow is not None:
                    world.lines[node.cluster, request.options[0]].abort(now_ns, request.flow)
                    request.flow = None
                again.append(request)
            else:
                world.idle[node.cluster].remove(node)
        self._again(now_ns, nodes[0].cluster, again)

    def _again(self, now_ns: int, at: int, lost: list[Request]) -> None:
        """Place who lost a node; and who waits, where no node is left."""
        backlog = self.world.backlogs[at]
        if not backlog.nodes:
            lost += [job for job in backlog.drop_all() if isinstance(job, Request)]
        for request in lost:
            self.world.tally.retried += 1
            self.world.place(now_ns, request)

    def _switch_decode(self, now_ns: int, at: int, number: int, up: bool) -> None:
        pool = self._pool(at)
        node = pool.nodes[number]
        if node.then is not None:
            return
        if up:
            node.up = True
            pool.admit(now_ns)
            return
        for request in pool.lose(node):
            request.first_ns = UNSEEN
            self.world.tally.retried += 1
            self.world.place(now_ns, request)

    def _to_prefill(self, now_ns: int, at: int, fault: Fault) -> None:
        """A decode node takes nobody any more; once it is empty, and after what the change costs, it prefills."""
        world, pool = self.world, self._pool(at)
        leaving = pool.nodes[fault.node]
        if not leaving.up:
            return

        def come(now_ns: int, _: None) -> None:
            node = PrefillNode(at, len(world.nodes[at]))
            world.nodes[at].append(node)
            world.backlogs[at].nodes += 1
            world.take_next(now_ns, node)

        def change(now_ns: int) -> None:
            leaving.then = _done
            world.later(now_ns + fault.until_ns - fault.at_ns, come, None)

        leaving.up, leaving.then = False, change
        if not leaving.active:
            change(now_ns)

    def _to_decode(self, now_ns: int, at: int, fault: Fault) -> None:
        """The reverse: it ends what it prefills first."""
        world, pool = self.world, self._pool(at)
        leaving = world.nodes[at][fault.node]
        if not leaving.up:
            return

        def come(now_ns: int, _: None) -> None:
            pool.nodes.append(DecodeNode())
            pool.admit(now_ns)

        def change(now_ns: int) -> None:
            leaving.then = _done
            world.later(now_ns + fault.until_ns - fault.at_ns, come, None)

        leaving.up, leaving.then = False, change
        world.backlogs[at].nodes -= 1
        if leaving.running is None:
            world.idle[at].remove(leaving)
            change(now_ns)
        self._again(now_ns, at, [])

    def _pool(self, at: int) -> DecodePool:
        pool = self.world.pools[at]
        if pool is None:
            raise InvariantError(f"{self.world.setup.clusters[at].name} does not decode")
        return pool


def _done(now_ns: int) -> None:
    """It has left."""
