"""The index's books, added up again from nothing.

It knows every rule that runs, holders and orphans keep; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prfaas.core.errors import InvariantError
from prfaas.core.index.places import Keeper
from prfaas.core.index.runs import Run, numbers_of
from prfaas.core.index.tree import Tree


def audit(tree: Tree, keepers: Iterable[Keeper]) -> None:
    """Raises InvariantError that says which rule is broken."""
    runs_of, orphans, count, run_blocks = tree.runs_of, tree.orphans, tree.runs, tree.run_blocks
    keepers = list(keepers)
    runs = list({id(run): run for run in runs_of.values()}.values())
    _demand(len(runs) == count, f"{count} runs are counted, {len(runs)} are there")
    _demand(sum(len(run.hashes) for run in runs) == len(runs_of), "a run has blocks that are not its own")
    for run in runs:
        _demand(0 < len(run.hashes) <= run_blocks, f"a run of {len(run.hashes)} blocks")
        _demand(all(runs_of[block] is run for block in run.hashes), "a block is in another run")
        _check_links(run, runs_of, orphans)
        _check_holders(run, keepers)
    waiting = sum(len(children) for children in orphans.values())
    alone = sum(run.parent is None and run.above is not None for run in runs)
    _demand(waiting == alone, f"{waiting} orphans wait, {alone} are there")
    for keeper in keepers:
        held = {id(run) for run in runs if run.mask(keeper.number) or keeper.planes & (run.planes or {}).keys()}
        _demand(held == {id(run) for run in keeper.runs}, f"{keeper.place}: its runs are others")


def _check_links(run: Run, runs_of: Mapping[int, Run], orphans: Mapping[int, Mapping[int, Run]]) -> None:
    _demand(run.held().bit_length() == len(run.hashes), "nobody holds the last block")
    if run.parent is not None:
        _demand(run.parent.hashes[run.at] == run.above, "it follows another block")
        _demand((run.parent.children or {}).get(run.hashes[0]) is run, "its parent does not know it")
        _demand(run.parent.start < 0 or run.start == run.parent.start + run.at + 1, "its start is wrong")
    elif run.above is None:
        _demand(run.start == 0, "a root that does not start at 0")
    else:
        above = runs_of.get(run.above)
        fits = above is not None and above.can_adopt(run, above.hashes.index(run.above))
        _demand(not fits, "an orphan whose parent is there")
        _demand(orphans.get(run.above, {}).get(run.hashes[0]) is run, "an orphan that does not wait")
    for child in (run.children or {}).values():
        _demand(child.parent is run, "a child of another run")


def _check_holders(run: Run, keepers: Iterable[Keeper]) -> None:
    ones = (1 << len(run.hashes)) - 1
    holders = run.full
    for number, mask in (run.part or {}).items():
        _demand(0 < mask <= ones and not run.full >> number & 1, "a mask that is empty, too long or of a full holder")
        _demand(mask != ones or not run.reach >> number & 1, "a holder of all that is live is not in `full`")
        holders |= 1 << number
    known = sum(1 << keeper.number for keeper in keepers)
    _demand(holders & ~known == 0, "a holder that nobody knows")
    reached = sum(1 << number for number in numbers_of(holders) if run.reaches(number))
    _demand(run.reach == reached, f"reach is {run.reach:b}, should be {reached:b}")
    _demand(run.full & ~run.reach == 0, "a full holder that is not live")
    for keeper in keepers:
        if len(keeper.tiers) > 1:
            union = 0
            for plane in keeper.tiers.values():
                union |= (run.planes or {}).get(plane, 0)
            _demand(union == run.mask(keeper.number), "tiers are not what is held")
    for mask in (run.planes or {}).values():
        _demand(0 < mask <= ones, "a plane's mask that is empty or too long")


def _demand(holds: bool, rule: str) -> None:
    if not holds:
        raise InvariantError(f"prefix index: {rule}")
