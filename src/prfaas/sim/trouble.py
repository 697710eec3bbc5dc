"""What goes wrong in a world, and role changes: nodes and links that come and go on a schedule.

It knows what a fault does to nodes, queues and lines. Everybody whose work is lost is placed again. Of several faults
of one thing the worst counts, until the last has ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prfaas.sim.faults import Fault
from prfaas.sim.holding import Holding
from prfaas.sim.request import UNSEEN, Request

if TYPE_CHECKING:
    from prfaas.sim.world import World


class Trouble:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._holding = Holding()

    def plan(self, faults: Sequence[Fault]) -> None:
        """All of them, each with its end."""
        last_ns = self.world.duration_ns
        for fault in faults:
            if fault.at_ns >= last_ns:
                self._note(fault, f"begins when no requests come any more, from {last_ns / 1e9:g} s on")
            self.world.later(fault.at_ns, self._begin, fault)
            if fault.kind not in ("to_prefill", "to_decode"):
                self.world.later(fault.until_ns, self._end, fault)

    def _note(self, fault: Fault, what: str) -> None:
        number = "" if fault.kind in ("link", "service_down") else f" {fault.node}"
        self.world.notes.append(f"{fault.kind} {fault.cluster}{number} at {fault.at_ns / 1e9:g} s {what}")

    def _begin(self, now_ns: int, fault: Fault) -> None:
        self._change(now_ns, fault, begins=True)

    def _end(self, now_ns: int, fault: Fault) -> None:
        self._change(now_ns, fault, begins=False)

    def _change(self, now_ns: int, fault: Fault, *, begins: bool) -> None:
        world, at = self.world, self._named(fault.cluster)
        change = self._holding.begins if begins else self._holding.ends
        match fault.kind:
            case "node_down":
                change(("node", at, fault.node))
                self._switch(now_ns, at, [fault.node])
            case "service_down":
                change(("service", at))
                self._switch(now_ns, at, range(world.count(at)))
            case "slow_node":
                thing = ("speed", at, fault.node)
                change(thing, fault.factor)
                for place in world.places(at, fault.node):
                    place.slow = max(self._holding.of(thing), default=1.0)
            case "link":
                change(("link", at, fault.target), fault.bps)
                self._carry(now_ns, at, fault.target)
            case "decode_down":
                change(("decode", at, fault.node))
                self._switch_decode(now_ns, at, fault.node)
            case "to_prefill":
                self._to_prefill(now_ns, at, fault)
            case "to_decode":
                self._to_decode(now_ns, at, fault)
        if world.balance is not None:
            world.balance.staff(now_ns)
        if world.policy.moves:
            for one in range(len(world.backlogs)):
                world.seek(now_ns, one)

    def _named(self, name: str) -> int:
        return next(at for at, one in enumerate(self.world.setup.clusters) if one.name == name)

    def _carry(self, now_ns: int, at: int, target: str) -> None:
        """The line carries what its faults leave of it, less what retransmission costs; never more than without."""
        world, home = self.world, self._named(target)
        link = next(one for one in world.setup.links if (one.source, one.target) == (at, home))
        bps = round(min((link.bps, *self._holding.of(("link", at, target)))) * (1 - link.loss))
        if world.balance is not None:
            world.balance.links(now_ns)
        world.lines[at, home].carries(now_ns, bps)

    def _switch(self, now_ns: int, at: int, numbers: Iterable[int]) -> None:
        """Nodes are down while a fault of theirs, or of their service, holds."""
        world, backlog = self.world, self.world.backlogs[at]
        service = self._holding.of(("service", at))
        again: list[Request] = []
        for number in numbers:
            places = world.places(at, number)
            up = not service and not self._holding.of(("node", at, number))
            if places[0].up == up or places[0].then is not None:
                continue
            backlog.nodes += 1 if up else -1
            for place in places:
                place.up = up
            for place in places:
                if up:
                    world.take_next(now_ns, place)
                elif (request := place.running) is None:
                    world.retire(place)
                else:
                    world.let_go(now_ns, place)
                    if self._lost(now_ns, at, request):
                        again.append(request)
        world.roles.without_node(now_ns, at, again)

    def _lost(self, now_ns: int, at: int, request: Request) -> bool:
        """What was computed of it is. True: it has to be placed again."""
        world, home = self.world, request.options[0]
        if world.caches:
            world.caches[at].drop(request)
        if request.rescuer >= 0:
            request.rescuer = -1
            return False
        if request.flow is not None:
            world.lines[at, home].abort(now_ns, request.flow)
            request.flow = None
            if world.caches:
                world.caches[home].give_up(request)
        return True

    def _switch_decode(self, now_ns: int, at: int, number: int) -> None:
        pool = self.world.roles.pool(at)
        node = pool.nodes[number]
        up = not self._holding.of(("decode", at, number))
        if node.then is not None or node.up == up:
            return
        if up:
            node.up = True
            pool.admit(now_ns)
            return
        for request in pool.lose(node):
            request.first_ns = UNSEEN
            self.world.again(now_ns, request)

    def _to_prefill(self, now_ns: int, at: int, fault: Fault) -> None:
        """A decode node takes nobody any more; once it is empty, and after what the change costs, it prefills."""
        world = self.world
        nodes = world.roles.pool(at).nodes
        leaving = nodes[fault.node]
        if not leaving.up:
            self._note(fault, "was refused: the node is down, or leaves already")
            return
        if sum(node.then is None for node in nodes) == 1:
            self._note(fault, "was refused: no decode node would stay")
            return

        def come(now_ns: int, _: None) -> None:
            world.roles.join_prefill(now_ns, at)
            self._changed(now_ns)

        def empty(now_ns: int) -> None:
            world.later(now_ns + fault.until_ns - fault.at_ns, come, None)

        world.roles.drain_decode(now_ns, leaving, empty)

    def _to_decode(self, now_ns: int, at: int, fault: Fault) -> None:
        """The reverse: it ends what it prefills first."""
        world = self.world
        if not world.places(at, fault.node)[0].up:
            self._note(fault, "was refused: the node is down, or leaves already")
            return
        among = [world.places(one, number)[0] for one in (at, *world.sources(at)) for number in range(world.count(one))]
        if sum(place.then is None for place in among) == 1:
            self._note(fault, "was refused: no prefill node would stay")
            return

        def come(now_ns: int, _: None) -> None:
            world.roles.join_decode(now_ns, at)
            self._changed(now_ns)

        def empty(now_ns: int) -> None:
            world.later(now_ns + fault.until_ns - fault.at_ns, come, None)

        world.roles.drain_prefill(now_ns, at, fault.node, empty)

    def _changed(self, now_ns: int) -> None:
        if self.world.balance is not None:
            self.world.balance.staff(now_ns)
