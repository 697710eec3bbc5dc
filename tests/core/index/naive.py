"""The index as plainly as can be: sets of words, each prompt walked from its start."""

from __future__ import annotations

from prfaas.core.index.answer import BLOCK_TOKENS, Usable
from prfaas.core.index.places import Known, Place

Word = tuple[int, ...]


class Naive:
    """A block is the word that ends with it."""

    def __init__(self) -> None:
        self.groups: dict[Place, dict[int, int]] = {}
        self.known: dict[Place, Known] = {}
        self.dense: dict[Place, set[tuple[str, Word]]] = {}
        self.states: dict[Place, set[tuple[int, str, Word]]] = {}

    def open(self, place: Place, groups: dict[int, int], known: Known) -> None:
        self.groups[place], self.known[place] = groups, known
        self.dense[place], self.states[place] = set(), set()

    def close(self, place: Place) -> None:
        for books in (self.groups, self.known, self.dense, self.states):
            del books[place]

    def stored(self, place: Place, blocks: list[Word], tier: str, group: int | None) -> None:
        if group in self.groups[place]:
            assert group is not None
            self.states[place] |= {(group, tier, block) for block in blocks}
        else:
            self.dense[place] |= {(tier, block) for block in blocks}

    def removed(self, place: Place, blocks: list[Word], tier: str | None, group: int | None) -> None:
        gone = set(blocks)
        if group is None or group not in self.groups[place]:
            self.dense[place] -= {one for one in self.dense[place] if one[1] in gone and tier in (None, one[0])}
        if group is None or group in self.groups[place]:
            found = self.states[place]
            found -= {one for one in found if one[2] in gone and tier in (None, one[1]) and group in (None, one[0])}

    def usable(self, word: Word) -> dict[Place, Usable]:
        answer = {}
        for place, known in self.known.items():
            dense = 0
            held = {block for _, block in self.dense[place]}
            while dense < len(word) and word[: dense + 1] in held:
                dense += 1
            lengths = [length for length in range(1, dense + 1) if self._resumes(place, word, length)]
            if dense and known is not Known.UNKNOWN:
                tokens = max(lengths, default=0) * BLOCK_TOKENS
                answer[place] = Usable(place, tokens, dense * BLOCK_TOKENS, known)
        return answer

    def _resumes(self, place: Place, word: Word, length: int) -> bool:
        for group, needed in self.groups[place].items():
            held = {block for number, _, block in self.states[place] if number == group}
            first = max(1, length - needed + 1) if needed else 1
            if not all(word[:end] in held for end in range(first, length + 1)):
                return False
        return True
