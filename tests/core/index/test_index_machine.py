"""Stored, removed, cleared in any order and by anybody: answers are those of plain sets, and the books balance."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.index.naive import Naive, Word

from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place

WORDS = (st.lists(st.integers(0, 1), min_size=1, max_size=9) | st.lists(st.just(0), min_size=1, max_size=3)).map(tuple)
PLACES = [Place(ClusterName(f"c{number % 2}"), NodeName(f"n{number // 2}"), number % 3) for number in (0, 1, 4)]
TIERS = st.sampled_from(["GPU", "GPU", "CPU"])
GROUPS = st.sampled_from([{}, {1: 1}, {1: 1}, {1: 3}, {1: 1, 2: 2}, {3: 0}])
NUMBERS = st.sampled_from([None, None, 0, 1, 1, 2, 3])


class Index(RuleBasedStateMachine):
    """One index beside the plain sets."""

    @initialize(run_blocks=st.sampled_from([1, 2, 3, 64]), most_steps=st.sampled_from([0, 1, 2, 128]))
    def start(self, run_blocks: int, most_steps: int) -> None:
        self.index, self.naive = PrefixIndex(run_blocks, most_steps), Naive()
        self.hashes: dict[Word, int] = {}
        self.run_blocks = run_blocks
        self.epoch = 1

    def of(self, block: Word) -> int:
        return self.hashes.setdefault(block, len(self.hashes) * 0x9E3779B97F4A7C15 % 2**64)

    def chain(self, word: Word) -> list[int]:
        return [self.of(word[: end + 1]) for end in range(len(word))]

    @rule(place=st.sampled_from(PLACES), groups=GROUPS, known=st.sampled_from(Known))
    def open(self, place: Place, groups: dict[int, int], known: Known) -> None:
        self.epoch += 1
        assert self.index.open(place, Epoch(self.epoch), groups, known)
        assert not self.index.open(place, Epoch(self.epoch))
        assert not self.index.open(place, Epoch(self.epoch - 1))
        self.naive.open(place, groups, known)

    def pick(self, data: st.DataObject) -> Place:
        return data.draw(st.sampled_from(sorted(self.naive.known)))

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data(), word=WORDS, cut=st.integers(0, 8), tier=TIERS, group=NUMBERS)
    def stored(self, data: st.DataObject, word: Word, cut: int, tier: str, group: int | None) -> None:
        place, chain = self.pick(data), self.chain(word)
        cut = min(cut, len(chain) - 1)
        self.index.stored(place, chain[cut:], chain[cut - 1] if cut else None, tier=tier, group=group)
        self.naive.stored(place, [word[: end + 1] for end in range(cut, len(word))], tier, group)

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data(), word=WORDS, cut=st.integers(0, 8), tier=st.none() | TIERS, group=NUMBERS, back=st.booleans())
    def removed(
        self, data: st.DataObject, word: Word, cut: int, tier: str | None, group: int | None, back: bool
    ) -> None:
        place = self.pick(data)
        blocks = [word[: end + 1] for end in range(min(cut, len(word) - 1), len(word))]
        gone = data.draw(st.lists(st.sampled_from(blocks), max_size=3)) if back else blocks
        self.index.removed(place, [self.of(block) for block in gone], tier=tier, group=group)
        self.naive.removed(place, gone, tier, group)

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data())
    def cleared(self, data: st.DataObject) -> None:
        place = self.pick(data)
        self.index.cleared(place)
        self.naive.open(place, self.naive.groups[place], self.naive.known[place])

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data(), known=st.sampled_from(Known))
    def mark(self, data: st.DataObject, known: Known) -> None:
        place = self.pick(data)
        self.index.mark(place, known)
        self.naive.known[place] = known

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        place = self.pick(data)
        self.index.close(place)
        self.naive.close(place)

    @rule()
    def ask_of_all(self) -> None:
        """Of every path that is held: random words seldom leave one where another goes on."""
        self.ask(sorted({block for held in self.naive.dense.values() for _, block in held}))

    @precondition(lambda self: self.naive.known)
    @rule(data=st.data(), word=WORDS, group=st.sampled_from([1, 1, 2]))
    def stored_state(self, data: st.DataObject, word: Word, group: int) -> None:
        place = self.pick(data)
        held = sorted({block for _, block in self.naive.dense[place]})
        word = data.draw(st.sampled_from(held)) if held else word
        chain = self.chain(word)
        self.index.stored(place, chain[-1:], chain[-2] if len(chain) > 1 else None, group=group)
        self.naive.stored(place, [word], "", group)

    @rule(words=st.lists(WORDS, min_size=1, max_size=4))
    def ask(self, words: list[Word]) -> None:
        for word in words:
            answer = self.index.usable(self.chain(word))
            assert {found.place: found for found in answer.held} == self.naive.usable(word)
            assert set(answer.unknown) == {one for one, known in self.naive.known.items() if known is Known.UNKNOWN}

    @rule(word=WORDS, most=st.integers(1, 9))
    def read_back(self, word: Word, most: int) -> None:
        other = PrefixIndex(self.run_blocks)
        for place, (epoch, known) in self.index.places().items():
            other.open(place, epoch, self.index.groups(place), known)
            after: int | None = -1
            while after is not None:
                found, after = self.index.held(place, after, most)
                for hashes, parent, tier, group in found:
                    other.stored(place, hashes, parent, tier=tier, group=group)
        other.validate()
        assert set(other.usable(self.chain(word)).held) == set(self.index.usable(self.chain(word)).held)
        assert other.blocks <= self.index.blocks  # without holes in the middle of runs

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "index"):
            self.index.validate()
            for place in self.naive.known:
                assert self.index.held_blocks(place) == len({block for _, block in self.naive.dense[place]})

    def teardown(self) -> None:
        if hasattr(self, "index"):
            for place in list(self.naive.known):
                self.index.close(place)
            self.index.validate()
            assert (self.index.blocks, self.index.runs) == (0, 0)
            assert not self.index._tree.orphans
            assert not self.index._tree.loose


TestIndex = Index.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestIndexLonger(Index.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
