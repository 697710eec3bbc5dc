"""Runs: up to 64 blocks that follow one another, and who holds which of them.

It knows hashes, positions and bitmaps; it does not know places' names. A block's hash stands for its whole prefix, so
what comes before a block is the same whoever holds it: one tree of runs serves all. A holder's blocks in a run are a
mask of positions. A block is *live* for a holder when it holds all blocks before it too; only live blocks can be used,
the others are orphans until what is missing comes back.
"""

from __future__ import annotations

RUN_BLOCKS = 64


class Run:
    """One run.

    `hashes`: of its blocks. `above`: hash of the block before the first, None at a root. `parent`, `at`: the run and
    position of that block, None and -1 when no run has it (an orphan). `start`: blocks before the first, -1 while that
    is not known. `children`: runs whose `parent` is this, by first hash.

    Bitmaps by holder's number: `full` holds every block, live; `reach` those among the holders for whom the block
    before the first is live. `part`: masks of dense blocks of the holders that are not in `full`. `planes`: masks of
    states, and of single tiers where a holder has several.
    """

    __slots__ = ("above", "at", "children", "full", "hashes", "parent", "part", "planes", "reach", "start")

    def __init__(self, hashes: tuple[int, ...], above: int | None, parent: Run | None, at: int, start: int) -> None:
        self.hashes = hashes
        self.above = above
        self.parent = parent
        self.at = at
        self.start = start
        self.full = 0
        self.reach = 0
        self.part: dict[int, int] | None = None
        self.planes: dict[int, int] | None = None
        self.children: dict[int, Run] | None = None

    def position(self, block: int, hint: int = -1) -> int:
        """Where `block`, which is one of these, is. `hint`: where it may well be."""
        hashes = self.hashes
        if 0 <= hint < len(hashes) and hashes[hint] == block:
            return hint
        if hashes[-1] == block:
            return len(hashes) - 1
        return hashes.index(block)

    def mask(self, number: int) -> int:
        """Positions of the dense blocks that the holder has."""
        if self.full >> number & 1:
            return (1 << len(self.hashes)) - 1
        return self.part.get(number, 0) if self.part else 0

    def live(self, number: int) -> int:
        """How many blocks, from the first, are live for the holder."""
        if self.full >> number & 1:
            return len(self.hashes)
        if not self.part or not self.reach >> number & 1:
            return 0
        return ones_from_0(self.part.get(number, 0))

    def reaches(self, number: int) -> bool:
        """Whether the block before the first is live for the holder."""
        if self.parent is None:
            return self.above is None
        return self.parent.live(number) > self.at

    def only(self, number: int) -> bool:
        """Whether the holder has all dense blocks, and nobody else has any."""
        if not self.part:
            return self.full == 1 << number
        return not self.full and len(self.part) == 1 and self.part.get(number) == (1 << len(self.hashes)) - 1

    def held(self) -> int:
        """Positions that anybody holds anything of."""
        if self.full:
            return (1 << len(self.hashes)) - 1
        union = 0
        for mask in (self.part or {}).values():
            union |= mask
        for mask in (self.planes or {}).values():
            union |= mask
        return union

    def set_part(self, number: int, mask: int) -> None:
        """The holder, not in `full`, has these."""
        if mask:
            if self.part is None:
                self.part = {}
            self.part[number] = mask
        elif self.part is not None:
            self.part.pop(number, None)
            if not self.part:
                self.part = None

    def set_plane(self, plane: int, mask: int) -> None:
        """The plane has these."""
        if mask:
            if self.planes is None:
                self.planes = {}
            self.planes[plane] = mask
        elif self.planes is not None:
            self.planes.pop(plane, None)
            if not self.planes:
                self.planes = None

    def can_adopt(self, child: Run, at: int) -> bool:
        """Whether `child` is as deep as what follows the block at position `at`. In true chains it is."""
        return child.start < 0 or self.start < 0 or child.start == self.start + at + 1

    def adopt(self, child: Run, at: int) -> None:
        """`child` follows the block at position `at`."""
        child.parent, child.at = self, at
        if self.children is None:
            self.children = {}
        self.children[child.hashes[0]] = child
        if child.start < 0 <= self.start:
            below = [(child, self.start + at + 1)]
            while below:
                run, start = below.pop()
                run.start = start
                if run.children:
                    below.extend((one, run.start + one.at + 1) for one in run.children.values())

    def disown(self, child: Run) -> None:
        """`child` follows no run any more."""
        assert self.children is not None
        del self.children[child.hashes[0]]
        if not self.children:
            self.children = None
        child.parent, child.at = None, -1


def ones_from_0(mask: int) -> int:
    """How many lowest bits are all set."""
    return (~mask & (mask + 1)).bit_length() - 1


def numbers_of(bitmap: int) -> list[int]:
    """The bits that are set, ascending."""
    found = []
    while bitmap:
        low = bitmap & -bitmap
        found.append(low.bit_length() - 1)
        bitmap ^= low
    return found
