"""Nodes that leave a role or come to one: what they have runs to its end first.

It knows queues, nodes and pools; it does not know who wants the change (`trouble`, `balance`), nor what it costs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from prfaas.core.errors import InvariantError
from prfaas.sim.decode import DecodeNode, DecodePool
from prfaas.sim.request import UNSEEN, Request

if TYPE_CHECKING:
    from prfaas.sim.world import World

Then = Callable[[int], None]
"""Called with the time when nothing runs there any more."""


class Roles:
    """Of one world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def drain_prefill(self, now_ns: int, at: int, number: int, then: Then) -> None:
        """Prefill node `number` takes nobody any more."""
        world = self.world
        places = world.places(at, number)
        left = sum(place.running is not None for place in places)

        def over(now_ns: int) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                for place in places:
                    place.then, place.left_ns = _gone, now_ns
                then(now_ns)

        world.backlogs[at].nodes -= 1
        for place in places:
            place.up, place.then = False, over if left else _gone
            if place.running is None:
                world.retire(place)
        if not left:
            for place in places:
                place.left_ns = now_ns
            then(now_ns)
        self.without_node(now_ns, at, [])

    def resume_prefill(self, now_ns: int, at: int, number: int) -> None:
        """It goes on as it was."""
        world = self.world
        world.backlogs[at].nodes += 1
        for place in world.places(at, number):
            place.up, place.then, place.left_ns = True, None, UNSEEN
        for place in world.places(at, number):
            if place.running is None:
                world.take_next(now_ns, place)

    def join_prefill(self, now_ns: int, at: int) -> int:
        """A node comes: its number."""
        world = self.world
        number = world.count(at)
        places = world.add_node(at)
        world.backlogs[at].nodes += 1
        for place in places:
            world.retire(place)
        for place in places:
            world.take_next(now_ns, place)
        return number

    def drain_decode(self, now_ns: int, node: DecodeNode, then: Then) -> None:
        """A decode node takes nobody any more."""

        def over(now_ns: int) -> None:
            node.then = _gone
            then(now_ns)

        node.up, node.then = False, over
        if not node.active:
            over(now_ns)

    def resume_decode(self, now_ns: int, at: int, node: DecodeNode) -> None:
        """It goes on as it was."""
        node.up, node.then = True, None
        self.pool(at).admit(now_ns)

    def join_decode(self, now_ns: int, at: int) -> DecodeNode:
        """A node comes."""
        pool, node = self.pool(at), DecodeNode()
        pool.nodes.append(node)
        pool.admit(now_ns)
        return node

    def without_node(self, now_ns: int, at: int, lost: list[Request]) -> None:
        """Place who lost a node; and who waits, where no node is left."""
        backlog = self.world.backlogs[at]
        if not backlog.nodes:
            lost += [job for job in backlog.drop_all() if isinstance(job, Request)]
        for request in lost:
            self.world.again(now_ns, request)

    def pool(self, at: int) -> DecodePool:
        """The decode nodes of a cluster that has some."""
        pool = self.world.pools[at]
        if pool is None:
            raise InvariantError(f"{self.world.setup.clusters[at].name} does not decode")
        return pool


def _gone(now_ns: int) -> None:
    """It has left."""
