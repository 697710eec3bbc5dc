"""How long a prompt's prefix is, for each holder, in a tree of runs.

It knows runs and bitmaps of holders; it does not know places. Live blocks are a prefix of any prompt. So where the
longest one ends is bisected for, and a look settles a whole run; all others end on its path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prfaas.core.index.runs import Run, numbers_of

MOST_STEPS = 128
"""Four times the runs of a prompt of 2,048 blocks, where they are whole."""


def held_lengths(runs_of: Mapping[int, Run], chain: Sequence[int], trusted: int, most_steps: int) -> dict[int, int]:
    """Blocks of `chain` that count, by the number of each holder in the bitmap `trusted`.

    Where the longest ends is bisected for; the others end on its path, which is walked up, run by run. Were that
    many runs, the rest is bisected for, all holders together, apart where they part.
    """
    if not chain:
        return {}
    last = len(chain) - 1
    low = _live_at(runs_of, chain, 0) & trusted
    if not low:
        return {}
    high = _live_at(runs_of, chain, last) & low
    found = dict.fromkeys(numbers_of(high), last + 1)
    left = low & ~high
    if not left:
        return found
    run, end = (runs_of[chain[last]], last) if high else _deepest(runs_of, chain, low)
    for _ in range(most_steps):
        start = run.start
        alive = run.full & left
        if run.part:
            for number in numbers_of(run.reach & left & ~alive):
                stop = start + run.live(number)
                if stop > end:
                    alive |= 1 << number
                elif stop > start:
                    found[number] = stop
                    left &= ~(1 << number)
        if alive:
            found |= dict.fromkeys(numbers_of(alive), end + 1)
            left &= ~alive
        if not left or run.parent is None:
            return found
        run, end = run.parent, start - 1
    _bisect(runs_of, chain, [(0, left, end + 1, 0)], found)
    return found


def _deepest(runs_of: Mapping[int, Run], chain: Sequence[int], alive: int) -> tuple[Run, int]:
    """The run in which the last block ends that is live for any of the holders `alive`, who are at the first block
    and not at the last, and the depth up to which the chain follows it."""
    low, high = 0, len(chain) - 1
    deepest, end = runs_of[chain[0]], 0
    at = 0
    while True:
        run = runs_of.get(chain[at])
        if run is None or not 0 <= at - run.start < len(run.hashes) or not _live(run, at) & alive:
            high = at
        else:
            deepest, end = run, _along(run.hashes, run.start, chain, at, high)
            if not _live(run, end) & alive:
                return deepest, end
            low = end
        if high - low <= 1:
            return deepest, end
        at = (low + high) >> 1


def _bisect(
    runs_of: Mapping[int, Run], chain: Sequence[int], spans: list[tuple[int, int, int, int]], found: dict[int, int]
) -> None:
    """Where holders end in `spans`: depths, each with the holders for whom the block there is live."""
    while spans:
        low, at_low, high, at_high = spans.pop()
        if at_low == at_high:
            continue
        if high - low <= 1:
            for number in numbers_of(at_low & ~at_high):
                found[number] = high
            continue
        middle = (low + high) >> 1
        run = runs_of.get(chain[middle])
        at_middle = 0
        if run is not None and 0 <= middle - run.start < len(run.hashes):
            at_middle = _live(run, middle) & at_low
        spans.append((low, at_low, middle, at_middle))
        spans.append((middle, at_middle, high, at_high))


def _live_at(runs_of: Mapping[int, Run], chain: Sequence[int], depth: int) -> int:
    """Bitmap of holders for whom the block at `depth` is live."""
    run = runs_of.get(chain[depth])
    if run is None or not 0 <= depth - run.start < len(run.hashes):
        return 0
    return _live(run, depth)


def common(run: tuple[int, ...], at: int, hashes: tuple[int, ...], first: int) -> int:
    """Blocks that a run, from `at`, and a chain, from `first`, have in common. Equal hashes mean equal prefixes."""
    count = min(len(run) - at, len(hashes) - first)
    if run[at + count - 1] == hashes[first + count - 1]:
        return count
    low, high = 1, count - 1
    while low < high:
        middle = (low + high + 1) >> 1
        if run[at + middle - 1] == hashes[first + middle - 1]:
            low = middle
        else:
            high = middle - 1
    return low


def _live(run: Run, depth: int) -> int:
    """Bitmap of holders for whom the run's block at `depth` is live."""
    bitmap = run.full
    if run.part:
        at, reach = depth - run.start, run.reach
        for number, mask in run.part.items():
            if reach >> number & 1 and ~mask & (mask + 1) > 1 << at:
                bitmap |= 1 << number
    return bitmap


def _along(run: tuple[int, ...], start: int, chain: Sequence[int], middle: int, high: int) -> int:
    """The last depth, at most `high`, up to which a run that begins at depth `start` and a chain are the same; they
    are at `middle`."""
    end = min(start + len(run) - 1, high)
    if run[end - start] == chain[end]:
        return end
    low, end = middle, end - 1
    while low < end:
        at = (low + end + 1) >> 1
        if run[at - start] == chain[at]:
            low = at
        else:
            end = at - 1
    return low
