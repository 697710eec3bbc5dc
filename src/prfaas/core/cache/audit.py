"""The books of a prefix pool, added up again from nothing.

It knows what the pool keeps and what must hold of it; it changes nothing. The cost is of the whole pool: for tests,
and for whoever suspects a bug.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prfaas.core.cache.runs import Node
from prfaas.core.errors import InvariantError

if TYPE_CHECKING:
    from prfaas.core.cache.prefixes import PrefixPool


def audit(pool: PrefixPool) -> None:
    """Raises InvariantError when a block is in two states or in none, when references are not what their holders are,
    when a block is stored without the one before it, when what may go is not known to, or when a count is wrong."""
    store = pool._store
    nodes = _nodes(store.root)
    stateful = pool.spec.stateful
    stored = [number for node in nodes for number in node.blocks]
    stored += [number for node in nodes for number in node.state or ()]
    working = [number for job in pool._jobs.values() for number in job.blocks]
    everywhere = sorted([*stored, *working, *store.free.numbers()])
    _demand(everywhere == list(range(store.capacity_blocks)), "a block is in two states, or in none")
    _demand(store.lent == len(working), f"{store.lent} working blocks are booked, there are {len(working)}")
    _demand(store.nodes == len(nodes) - 1, f"{store.nodes} nodes are booked, there are {len(nodes) - 1}")

    pins: dict[int, int] = {}
    for job in pool._jobs.values():
        pins[id(job.node)] = pins.get(id(job.node), 0) + 1
    pinned = 0
    for node in nodes:
        root = node is store.root
        _demand(node.pins == pins.pop(id(node), 0), f"{node.pins} pins at block {node.stop}, holders differ")
        holds = root + node.pins + sum(child.holds > 0 for child in node.children.values())
        _demand(node.holds == holds, f"{node.holds} holds at block {node.stop}, expected {holds}")
        pinned += len(node.ids) if node.holds else 0
        pinned += len(node.state or ()) if node.pins else 0
        for first, child in node.children.items():
            _demand(child.parent is node and child.start == node.stop, "a run does not follow its parent's")
            _demand(child.ids[0] == first, "a run is not where its first block says")
        if root:
            continue
        _demand(0 < node.stop - node.start == len(node.ids) == len(node.blocks), "a run has not one number a block")
        _demand(not node.state or len(node.state) == pool.spec.snapshot_blocks, "a snapshot of another size")
        if stateful:
            useful = node.state is not None or node.pins or node.children
            _demand(bool(useful), f"blocks up to {node.stop} are kept, and nothing can resume there")
            may_go = node.state is not None and not node.pins
        else:
            may_go = not node.children and not node.holds
        _demand(not may_go or node.queued is not None, f"the node that ends at block {node.stop} would never go")
    _demand(not pins, "somebody holds a prefix that is not stored")
    _demand(store.pinned == pinned, f"{store.pinned} pinned blocks are booked, there are {pinned}")
    _demand(
        len(store.ages) <= 2 * len(nodes) + 2 * store.capacity_blocks + 64, "entries of nodes that are gone pile up"
    )


def _nodes(root: Node) -> list[Node]:
    found = [root]
    for node in found:
        found.extend(node.children.values())
    return found


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)
