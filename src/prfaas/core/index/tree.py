"""The tree of runs, and all that changes it: blocks come, go, and count or not, for one holder at a time.

It knows runs, positions and keepers' numbers; it does not know places, and of states only where they are to be put.
"""

from __future__ import annotations

from itertools import islice

from prfaas.core.index.places import Keeper
from prfaas.core.index.runs import Run


class Tree:
    """`runs_of`: the run of each block. `orphans`: runs by the hash of the block that they wait for, then by their own
    first. `loose`: states, by plane, of blocks that no run has. `runs`: how many there are, of at most `run_blocks`.
    """

    def __init__(self, run_blocks: int) -> None:
        self.run_blocks = run_blocks
        self.runs_of: dict[int, Run] = {}
        self.orphans: dict[int, dict[int, Run]] = {}
        self.loose: dict[int, dict[int, Keeper]] = {}
        self.runs = 0

    def grow(self, keeper: Keeper, hashes: tuple[int, ...], first: int, parent: int | None, plane: int) -> int:
        """Takes in blocks that the index does not have, from `first` on. Returns up to where."""
        stop = len(hashes)
        above = None if parent is None else self.runs_of.get(parent)
        room = 0
        if above is not None and above.hashes[-1] == parent and above.only(keeper.number):
            room = self.run_blocks - len(above.hashes)
        while first < stop:
            wanted = hashes[first : min(stop, first + (room or self.run_blocks))]
            new = self._new(wanted)
            if room and above is not None:
                self._extend(keeper, above, new, plane)
            else:
                above = self._begin(keeper, new, parent, above, plane)
            first += len(new)
            parent, room = new[-1], 0
            if len(new) < len(wanted) or (first < stop and hashes[first] in self.runs_of):
                break
        return first

    def _new(self, wanted: tuple[int, ...]) -> tuple[int, ...]:
        """Those from the first on, which is new, up to one that is known: where an orphan begins; or, as no true chain
        has it, one that is known elsewhere or that was there already."""
        if self.runs_of.keys().isdisjoint(wanted) and len(set(wanted)) == len(wanted):
            return wanted
        stop = 1
        while wanted[stop] not in self.runs_of and wanted[stop] not in wanted[:stop]:
            stop += 1
        return wanted[:stop]

    def _begin(self, keeper: Keeper, new: tuple[int, ...], parent: int | None, above: Run | None, plane: int) -> Run:
        """A run of blocks that nobody had."""
        run = Run(new, parent, None, -1, 0 if parent is None else -1)
        if parent is not None:
            if above is not None:
                above.adopt(run, above.position(parent))
            else:
                self.orphans.setdefault(parent, {})[new[0]] = run
        self.runs_of.update(dict.fromkeys(new, run))
        self.runs += 1
        keeper.runs.add(run)
        bit, ones = 1 << keeper.number, (1 << len(new)) - 1
        if run.reaches(keeper.number):
            run.full = run.reach = bit
        else:
            run.part = {keeper.number: ones}
        if len(keeper.tiers) > 1:
            run.set_plane(plane, ones)
        self._welcome(keeper, run, 0)
        return run

    def _extend(self, keeper: Keeper, run: Run, new: tuple[int, ...], plane: int) -> None:
        """Blocks that follow the last one of `run`, which only this holder has."""
        before = len(run.hashes)
        run.hashes += new
        if run.part:
            run.part[keeper.number] = (1 << len(run.hashes)) - 1
        self.runs_of.update(dict.fromkeys(new, run))
        if len(keeper.tiers) > 1:
            held = run.planes.get(plane, 0) if run.planes else 0
            run.set_plane(plane, held | ((1 << len(new)) - 1) << before)
        self._welcome(keeper, run, before)

    def _welcome(self, keeper: Keeper, run: Run, before: int) -> None:
        """Orphans and states that waited for blocks of `run` from position `before` on find their place."""
        if self.orphans and not self.orphans.keys().isdisjoint(run.hashes):
            for at, block in islice(enumerate(run.hashes), before, None):
                waiting = self.orphans.pop(block, {})
                apart = {}
                for first, child in waiting.items():
                    if run.can_adopt(child, at):
                        run.adopt(child, at)
                    else:
                        apart[first] = child
                if apart:
                    self.orphans[block] = apart
            self._spread(keeper.number, run, before, run.live(keeper.number), alive=True)
        if self.loose and not self.loose.keys().isdisjoint(run.hashes):
            for at, block in islice(enumerate(run.hashes), before, None):
                for plane, owner in self.loose.pop(block, {}).items():
                    owner.loose.discard(block)
                    owner.runs.add(run)
                    run.set_plane(plane, 1 << at | (run.planes or {}).get(plane, 0))

    def add(self, keeper: Keeper, run: Run, bits: int, plane: int) -> None:
        """The holder has these positions of a run too."""
        number = keeper.number
        if len(keeper.tiers) > 1:
            run.set_plane(plane, bits | (run.planes or {}).get(plane, 0))
        if run.full >> number & 1:
            return
        before = run.part.get(number, 0) if run.part else 0
        mask = before | bits
        if mask == before:
            return
        if not before:
            keeper.runs.add(run)
            if run.reaches(number):
                run.reach |= 1 << number
        lived = run.live(number)
        self._settle(run, number, mask)
        if run.children:
            self._spread(number, run, lived, run.live(number), alive=True)

    def take(self, keeper: Keeper, run: Run, bits: int, tier: str | None) -> None:
        if tier is not None and tier not in keeper.tiers:
            return
        if len(keeper.tiers) > 1:
            for name, plane in keeper.tiers.items():
                if tier is None or tier == name:
                    clear(run, plane, bits)
            for plane in keeper.tiers.values():
                bits &= ~(run.planes or {}).get(plane, 0)  # what another tier has is not gone
        number = keeper.number
        before = run.mask(number)
        mask = before & ~bits
        if mask == before:
            return
        lived = run.live(number)
        run.full &= ~(1 << number)
        self._settle(run, number, mask)
        if run.children:
            self._spread(number, run, run.live(number), lived, alive=False)

    @staticmethod
    def _settle(run: Run, number: int, mask: int) -> None:
        """The holder, not in `full`, has these positions now."""
        bit = 1 << number
        if not mask:
            run.reach &= ~bit
        if run.reach & bit and mask == (1 << len(run.hashes)) - 1:
            run.full |= bit
            mask = 0
        run.set_part(number, mask)

    def _spread(self, number: int, run: Run, low: int, high: int, *, alive: bool) -> None:
        """Positions [low, high) of `run` are live for the holder from now on, or are no more: so is what follows."""
        bit = 1 << number
        todo = [(run, low, high)]
        while todo:
            run, low, high = todo.pop()
            for child in (run.children or {}).values():
                if not low <= child.at < high:
                    continue
                mask = child.mask(number)
                if not mask:
                    continue
                if alive:
                    child.reach |= bit
                    self._settle(child, number, mask)
                    length = child.live(number)
                else:
                    length = child.live(number)
                    child.reach &= ~bit
                    child.full &= ~bit
                    child.set_part(number, mask)
                if child.children:
                    todo.append((child, 0, length))

    def trim(self, run: Run) -> None:
        """Forgets blocks at the end of `run` that nobody holds."""
        keep = run.held().bit_length()
        if keep == len(run.hashes):
            return
        for block in run.hashes[keep:]:
            del self.runs_of[block]
        for child in [one for one in (run.children or {}).values() if one.at >= keep]:
            run.disown(child)
            assert child.above is not None
            self.orphans.setdefault(child.above, {})[child.hashes[0]] = child
        if keep:
            run.hashes = run.hashes[:keep]
            for number in [one for one, mask in (run.part or {}).items() if mask == (1 << keep) - 1]:
                self._settle(run, number, (1 << keep) - 1)
            return
        self.runs -= 1
        if run.parent is not None:
            run.parent.disown(run)
        elif run.above is not None:
            waiting = self.orphans[run.above]
            del waiting[run.hashes[0]]
            if not waiting:
                del self.orphans[run.above]


def clear(run: Run, plane: int, bits: int) -> None:
    """The plane has these positions no more."""
    if run.planes and plane in run.planes:
        run.set_plane(plane, run.planes[plane] & ~bits)
