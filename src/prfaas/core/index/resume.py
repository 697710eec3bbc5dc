"""Where a place with request-level state can resume: the longest length at which every group has what it needs.

It knows masks of positions along one prompt; it does not know hashes. A mask over the whole prompt is one integer, a
bit a block, so a window of w blocks is w shifts (log w of them), whatever the prompt's length.
"""

from __future__ import annotations

from prfaas.core.index.places import Keeper
from prfaas.core.index.runs import Run, ones_from_0


class Path:
    """The runs along a prompt's first `blocks` blocks, the last of which is in `run`."""

    __slots__ = ("_runs",)

    def __init__(self, run: Run, blocks: int) -> None:
        self._runs: list[tuple[int, int, dict[int, int]]] = []
        at: Run | None = run
        ones = (1 << blocks - run.start) - 1
        while at is not None:
            if at.planes:
                self._runs.append((at.start, ones, at.planes))
            ones = (1 << at.at + 1) - 1  # the prompt leaves a run where the next one begins, perhaps before its end
            at = at.parent

    def mask(self, planes: set[int]) -> int:
        """Blocks, by depth, of which any of `planes` has something."""
        found = 0
        for start, ones, masks in self._runs:
            for plane in planes & masks.keys():
                found |= (masks[plane] & ones) << start
        return found


def resumable(keeper: Keeper, path: Path, blocks: int) -> int:
    """Blocks up to which `keeper` can resume, at most `blocks`, which count."""
    ends = (1 << blocks) - 1
    for group, needed in keeper.groups.items():
        ends &= resume_points(path.mask(set(keeper.states[group].values())), needed)
        if not ends:
            return 0
    return ends.bit_length()


def resume_points(mask: int, needed: int) -> int:
    """Bit k: one can resume after block k. `mask`: blocks that are held; the last `needed` up to a length must be (0:
    all), those that the prompt has where it is shorter."""
    if needed == 0:
        return (1 << ones_from_0(mask)) - 1
    held, done = mask << needed | (1 << needed) - 1, 1  # before the prompt's start nothing is needed
    while done < needed:
        step = min(done, needed - done)
        held &= held << step
        done += step
    return held >> needed
