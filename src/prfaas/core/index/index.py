"""The index of prefixes: which place (node, rank) of which cluster holds which blocks, and what of a prompt it can use.

It knows canonical block hashes, places, tiers and groups of layers; it does not know tokens, engines, sockets or time.

What places hold is told in batches: `stored`, `removed`, `cleared`. Telling a thing twice, or of what is not there, is
harmless. Dense groups (full attention, MLA) answer how long a prefix is: a block counts for a place only while all
blocks before it are there, in whatever tier; the others are orphans, masked until what is missing comes back. Groups
with request-level state (recurrent state, windows) are kept apart: a place with such groups can resume only where each
of them has what it needs. A tier's copy that goes does not hide another tier's.

A place's blocks that count are a prefix of any prompt, so `usable` bisects for where the longest one ends: a few looks
into one dictionary, for a look settles a whole run. All others end on the way back, where holders are bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush

from prfaas.core.errors import LocalError
from prfaas.core.ids import Epoch
from prfaas.core.index.answer import BLOCK_TOKENS, Answer, Usable
from prfaas.core.index.audit import audit
from prfaas.core.index.held import Piece, pieces, size_bytes
from prfaas.core.index.lookup import MOST_STEPS, common, held_lengths
from prfaas.core.index.places import Keeper, Known, Place
from prfaas.core.index.resume import Path, resumable
from prfaas.core.index.runs import RUN_BLOCKS, Run
from prfaas.core.index.tree import Tree, clear

MOST_LOOSE = 1 << 16
"""States of blocks that the index has not seen; those that have waited longest are forgotten beyond."""
NO_GROUPS: Mapping[int, int] = {}


class PrefixIndex:
    """All places. Methods that take a `place` raise LocalError for one that is not open.

    `run_blocks`: blocks of which one run may be. Longer runs are fewer, and slower to find a block in. `most_steps`:
    runs that a look-up walks along before it bisects.
    """

    def __init__(self, run_blocks: int = RUN_BLOCKS, most_steps: int = MOST_STEPS) -> None:
        self._most_steps = most_steps
        self._tree = Tree(run_blocks)
        self._keepers: dict[Place, Keeper] = {}
        self._numbered: dict[int, Keeper] = {}
        self._free: list[int] = []
        self._planes = 0
        self._trusted = 0
        self._unknown: tuple[Place, ...] = ()

    # Places.

    def open(
        self, place: Place, epoch: Epoch, groups: Mapping[int, int] = NO_GROUPS, known: Known = Known.WHOLLY
    ) -> bool:
        """This incarnation of `place` is there from now on, and holds nothing yet. An older one's blocks are dropped.

        `groups`: groups of layers that are kept apart, and how many blocks up to a length each must hold to resume
        there: 1 for a state, more for a window, 0 for all. Groups that are not in it are one dense group. False, and
        nothing has changed, when this incarnation is open already or a later one was.
        """
        keeper = self._keepers.get(place)
        if keeper is not None and epoch <= keeper.epoch:
            return False
        if keeper is not None:
            self._empty(keeper)
            number = keeper.number
        else:
            number = heappop(self._free) if self._free else len(self._numbered)
        self._keepers[place] = self._numbered[number] = Keeper(place, number, epoch, groups, known)
        self._know()
        return True

    def close(self, place: Place) -> None:
        """`place` is gone, with all that it held. Nothing when it is not open."""
        keeper = self._keepers.pop(place, None)
        if keeper is not None:
            self._empty(keeper)
            del self._numbered[keeper.number]
            heappush(self._free, keeper.number)
            self._know()

    def mark(self, place: Place, known: Known) -> None:
        """So well is it known from now on what `place` holds."""
        self._keeper(place).known = known
        self._know()

    def places(self) -> dict[Place, tuple[Epoch, Known]]:
        """All that are open."""
        return {place: (keeper.epoch, keeper.known) for place, keeper in self._keepers.items()}

    def keep_apart(self, place: Place, group: int, needed: int) -> None:
        """`place` has this group too, which is kept apart (see `open`). Nothing when that is known."""
        keeper = self._keeper(place)
        if group not in keeper.groups:
            keeper.groups[group], keeper.states[group] = needed, {}

    def groups(self, place: Place) -> dict[int, int]:
        """The groups of `place` that are kept apart, and what each needs."""
        return dict(self._keeper(place).groups)

    # What they hold.

    def stored(
        self, place: Place, hashes: Sequence[int], parent: int | None, *, tier: str = "", group: int | None = None
    ) -> None:
        """`place` has these blocks, each of which follows the one before, the first one `parent` (None: it is a
        prompt's first). Of a group that is kept apart, the blocks need not follow one another, nor `parent` be told.
        """
        keeper = self._keeper(place)
        if group is not None and group in keeper.groups:
            self._states_stored(keeper, hashes, group, tier)
            return
        plane = self._plane_of_tier(keeper, tier)
        hashes = tuple(hashes)
        runs_of, done, end = self._tree.runs_of, 0, len(hashes)
        while done < end:
            run = runs_of.get(hashes[done])
            if run is None:
                done = self._tree.grow(keeper, hashes, done, parent, plane)
            else:
                at = run.position(hashes[done], 0)
                count = common(run.hashes, at, hashes, done)
                self._tree.add(keeper, run, ((1 << count) - 1) << at, plane)
                done += count
            parent = hashes[done - 1]

    def removed(
        self, place: Place, hashes: Sequence[int], *, tier: str | None = None, group: int | None = None
    ) -> None:
        """`place` has these blocks no more: in one tier, or (None) in any; of one group, or (None) of any."""
        keeper = self._keeper(place)
        apart = group is not None and group in keeper.groups
        run: Run | None = None
        bits, hint = 0, -1
        for block in hashes:
            found = self._tree.runs_of.get(block)
            if found is None:
                self._forget_loose(keeper, block, group, tier)
                continue
            if found is not run:
                if run is not None:
                    self._take(keeper, run, bits, tier, group, apart)
                run, bits, hint = found, 0, -1
            at = found.position(block, hint)
            bits |= 1 << at
            hint = at + 1
        if run is not None:
            self._take(keeper, run, bits, tier, group, apart)

    def cleared(self, place: Place) -> None:
        """`place` holds nothing any more. The cost is of what it held."""
        self._empty(self._keeper(place))

    # What of a prompt can be used.

    def usable(self, chain: Sequence[int]) -> Answer:
        """What each place can use of the prompt whose blocks have these hashes."""
        lengths = held_lengths(self._tree.runs_of, chain, self._trusted, self._most_steps)
        held, path = [], None
        for number, blocks in sorted(lengths.items()):
            keeper = self._numbered[number]
            resume = blocks
            if keeper.groups:
                if path is None:
                    longest = max(lengths.values())
                    path = Path(self._tree.runs_of[chain[longest - 1]], longest)
                resume = resumable(keeper, path, blocks)
            held.append(Usable(keeper.place, resume * BLOCK_TOKENS, blocks * BLOCK_TOKENS, keeper.known))
        return Answer(tuple(held), self._unknown)

    # What is in it.

    @property
    def blocks(self) -> int:
        """Different blocks that anybody holds, and those between them in a run that nobody holds any more."""
        return len(self._tree.runs_of)

    @property
    def runs(self) -> int:
        """Runs of blocks: what memory grows with, beside blocks."""
        return self._tree.runs

    def held_blocks(self, place: Place) -> int:
        """Dense blocks that `place` holds, orphans included. The cost is of what it holds."""
        keeper = self._keeper(place)
        return sum(run.mask(keeper.number).bit_count() for run in keeper.runs)

    def memory_bytes(self) -> int:
        """About what it takes. The cost is small."""
        return size_bytes(self._tree.runs_of, self._tree.runs)

    def held(self, place: Place, after: int = -1, most_hashes: int | None = None) -> tuple[list[Piece], int | None]:
        """What `place` holds, in pieces that `stored` takes, by the first hash of a run; and where to go on, or None.

        `after`: what the last call said. Pieces have about `most_hashes` hashes, and are at least one. Between calls
        all may change: what did not is in some piece.
        """
        keeper = self._keeper(place)
        found, following = pieces(keeper, after, most_hashes)
        if following is None:
            for block in sorted(keeper.loose):
                for plane, owner in self._tree.loose[block].items():
                    if owner is keeper:
                        group, tier = _group_of(keeper, plane)
                        found.append(Piece((block,), None, tier, group))
        return found, following

    def validate(self) -> None:
        """Raises InvariantError when it contradicts itself. The cost is of all that is in it."""
        audit(self._tree, self._keepers.values())

    # Dense blocks.

    def _take(self, keeper: Keeper, run: Run, bits: int, tier: str | None, group: int | None, apart: bool) -> None:
        """The holder has these positions of a run no more."""
        if group is None or apart:
            for number, tiers in keeper.states.items():
                if group is None or group == number:
                    for name, plane in tiers.items():
                        if tier is None or tier == name:
                            clear(run, plane, bits)
        if not apart:
            self._tree.take(keeper, run, bits, tier)
        if not run.mask(keeper.number) and not (run.planes and keeper.planes & run.planes.keys()):
            keeper.runs.discard(run)
        self._tree.trim(run)

    def _plane_of_tier(self, keeper: Keeper, tier: str) -> int:
        """The plane of a tier of dense blocks. With the second tier each gets masks of its own."""
        plane = keeper.tiers.get(tier)
        if plane is None:
            plane = keeper.tiers[tier] = self._new_plane(keeper)
            if len(keeper.tiers) == 2:
                first = next(iter(keeper.tiers.values()))
                for run in keeper.runs:
                    run.set_plane(first, run.mask(keeper.number))
        return plane

    # States.

    def _states_stored(self, keeper: Keeper, hashes: Sequence[int], group: int, tier: str) -> None:
        plane = keeper.states[group].get(tier)
        if plane is None:
            plane = keeper.states[group][tier] = self._new_plane(keeper)
        for block in hashes:
            run = self._tree.runs_of.get(block)
            if run is not None:
                run.set_plane(plane, 1 << run.position(block) | (run.planes or {}).get(plane, 0))
                keeper.runs.add(run)
                continue
            self._tree.loose.setdefault(block, {})[plane] = keeper
            keeper.loose.add(block)
            if len(self._tree.loose) > MOST_LOOSE:
                oldest = next(iter(self._tree.loose))
                for owner in self._tree.loose.pop(oldest).values():
                    owner.loose.discard(oldest)

    def _forget_loose(self, keeper: Keeper, block: int, group: int | None, tier: str | None) -> None:
        waiting = self._tree.loose.get(block)
        if waiting is None or block not in keeper.loose:
            return
        for number, tiers in keeper.states.items():
            for name, plane in tiers.items():
                if group in (None, number) and tier in (None, name):
                    waiting.pop(plane, None)
        if not any(owner is keeper for owner in waiting.values()):
            keeper.loose.discard(block)
        if not waiting:
            del self._tree.loose[block]

    def _new_plane(self, keeper: Keeper) -> int:
        plane = self._planes
        self._planes += 1
        keeper.planes.add(plane)
        return plane

    # Holders.

    def _keeper(self, place: Place) -> Keeper:
        keeper = self._keepers.get(place)
        if keeper is None:
            raise LocalError(f"{place} is not open in the index")
        return keeper

    def _empty(self, keeper: Keeper) -> None:
        """It holds nothing any more."""
        number, runs = keeper.number, keeper.runs
        keeper.runs = set()
        for run in runs:
            run.full &= ~(1 << number)
            run.reach &= ~(1 << number)
            run.set_part(number, 0)
            if run.planes:
                for plane in keeper.planes & run.planes.keys():
                    run.set_plane(plane, 0)
        for run in runs:
            self._tree.trim(run)
        for block in keeper.loose:
            waiting = self._tree.loose[block]
            for plane in keeper.planes & waiting.keys():
                del waiting[plane]
            if not waiting:
                del self._tree.loose[block]
        keeper.loose = set()

    def _know(self) -> None:
        self._trusted = sum(1 << one.number for one in self._numbered.values() if one.known is not Known.UNKNOWN)
        self._unknown = tuple(sorted(one.place for one in self._numbered.values() if one.known is Known.UNKNOWN))


def _group_of(keeper: Keeper, plane: int) -> tuple[int, str]:
    return next((group, tier) for group, tiers in keeper.states.items() for tier, one in tiers.items() if one == plane)
