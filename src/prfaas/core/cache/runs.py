"""A tree of runs: every prefix that is stored, as paths from one root; equal prefixes are one path.

It knows block ids, block numbers and who is whose parent; it does not know requests, room or age. A run is as many
blocks as nothing tells apart: a node ends where paths part, where a snapshot is, or where somebody holds on. So a path
has few nodes, and what is done to a run (holding, refreshing, evicting) costs the same for one block or a thousand.
"""

from __future__ import annotations

from collections.abc import Sequence


class Node:
    """One run. `ids` and `blocks`: chain ids and block numbers, one each a block; `start`,
    `stop`: blocks before it, and up to its end.

    `state`: block numbers of the snapshot at its end; none at the end of rows that are kept without one; None where
    nothing is. `pins`: holders whose prefix ends at its end; `holds`:
    `pins` and the children that are held. `used`: when it was last used as the end of a prefix (a tick, not a time);
    `queued`: its age in the order of eviction, None while it is not in it.
    """

    __slots__ = (
        "blocks",
        "children",
        "holds",
        "ids",
        "parent",
        "pins",
        "queued",
        "serial",
        "start",
        "state",
        "stop",
        "used",
    )

    def __init__(self, parent: Node | None, start: int, ids: list[int], blocks: list[int], serial: int) -> None:
        self.parent = parent
        self.start = start
        self.stop = start + len(ids)
        self.ids = ids
        self.blocks = blocks
        self.serial = serial
        self.children: dict[int, Node] = {}
        self.state: list[int] | None = None
        self.pins = 0
        self.holds = 0
        self.used = 0
        self.queued: int | None = None


def follow(node: Node, chain: Sequence[int], limit: int) -> tuple[Node, int, Node]:
    """From the end of `node`, on the path of `chain`, how far the tree goes, at most `limit` blocks.

    Returns the last node that agrees, the blocks up to which it agrees (its end, or inside its run), and the last
    node on the way with a snapshot (`node` where there was none). Equal ids at equal positions mean equal prefixes,
    so one comparison settles a run, and bisection finds where a run and the chain part.
    """
    depth = node.stop
    resume = node
    while depth < limit:
        child = node.children.get(chain[depth])
        if child is None:
            break
        ids = child.ids
        end = child.stop
        if end <= limit and ids[-1] == chain[end - 1]:
            node = child
            depth = end
            if child.state:
                resume = child
            continue
        low, high = 1, (limit if limit < end else end - 1) - depth
        while low < high:
            middle = (low + high + 1) >> 1
            if ids[middle - 1] == chain[depth + middle - 1]:
                low = middle
            else:
                high = middle - 1
        return child, depth + low, resume
    return node, depth, resume


def split(node: Node, depth: int, serial: int) -> Node:
    """Cuts `node` at `depth` blocks, inside its run: the new upper part. `node` itself stays the lower part."""
    parent = node.parent
    assert parent is not None
    cut = depth - node.start
    upper = Node(parent, node.start, node.ids[:cut], node.blocks[:cut], serial)
    parent.children[upper.ids[0]] = upper
    del node.ids[:cut], node.blocks[:cut]
    node.start = depth
    node.parent = upper
    upper.children[node.ids[0]] = node
    upper.used = node.used
    if node.holds:
        upper.holds = 1
    return upper


def join(node: Node) -> Node:
    """Makes `node` and its only child one run: the child, which is returned. The caller knows that nothing parts
    them."""
    (child,) = node.children.values()
    parent = node.parent
    assert parent is not None
    ids, blocks = node.ids, node.blocks  # mostly the longer ones
    ids += child.ids
    blocks += child.blocks
    child.ids = ids
    child.blocks = blocks
    child.start = node.start
    child.parent = parent
    parent.children[ids[0]] = child
    node.parent = None
    return child


def numbers(node: Node) -> list[int]:
    """Block numbers of the whole prefix that ends at the end of `node`, in order."""
    path: list[list[int]] = []
    at: Node | None = node
    while at is not None:
        path.append(at.blocks)
        at = at.parent
    return [number for blocks in reversed(path) for number in blocks]
