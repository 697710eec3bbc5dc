"""Engines' own blocks become canonical ones: any block size, copies, groups, and what cannot be placed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prfaas.cluster.enginemap import EngineMap
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Place
from prfaas.model.blockhash import CacheKey, block_hashes
from prfaas.wire.kvevents import AllCleared, BlocksRemoved, BlocksStored, KVEvent

PLACE = Place(ClusterName("c"), NodeName("n"))
Word = tuple[int, ...]


def root(salt: str = "", adapter: str = "") -> int:
    return CacheKey("model", salt=salt, adapter=adapter).root()


def tokens_of(word: Word, size: int) -> list[int]:
    return [letter * 1000 + at for letter in word for at in range(size)]


class Rig:
    """A map and the index that it feeds. An engine's block is the word that ends with it."""

    def __init__(self, size: int, *, canonical: bool = False) -> None:
        self.size = size
        self.index = PrefixIndex()
        self.index.open(PLACE, Epoch(1))
        self.map = EngineMap(PLACE, root, canonical=canonical)
        self.names: dict[Word, int] = {(): 0}

    def name(self, word: Word) -> int:
        return self.names.setdefault(word, 7919 * len(self.names))

    def tell(self, *events: KVEvent) -> None:
        for change in self.map.changes(events):
            apply(self.index, change)
        self.index.validate()

    def stored(self, word: Word, cut: int = 0, **more: object) -> BlocksStored:
        hashes = tuple(self.name(word[: end + 1]) for end in range(cut, len(word)))
        parent = self.name(word[:cut]) if cut else None
        tokens = tuple(tokens_of(word[cut:], self.size))
        return BlocksStored(hashes, parent, tokens, self.size, **more)  # type: ignore[arg-type]

    def sparse(self, word: Word, ends: list[int], group: int, kind: str, window: int | None = None) -> BlocksStored:
        """Of a group of which only some blocks are there."""
        hashes = tuple(self.name(word[:end]) for end in ends)
        return BlocksStored(hashes, None, tuple(tokens_of(word, self.size)), self.size, None, group, kind, window)

    def removed(self, *words: Word, **more: object) -> BlocksRemoved:
        return BlocksRemoved(tuple(self.name(word) for word in words), **more)  # type: ignore[arg-type]

    def usable(self, word: Word, *, salt: str = "", adapter: str = "") -> int:
        answer = self.index.usable(block_hashes(tokens_of(word, self.size), root(salt, adapter)))
        return answer.in_cluster(PLACE.cluster)


WORD = tuple(range(1, 13))


@pytest.mark.parametrize("size", [1, 16, 20, 48, 64, 96, 128, 528])
def test_any_block_size_rounds_down(size: int) -> None:
    rig = Rig(size)
    rig.tell(rig.stored(WORD[:5]))
    assert rig.usable(WORD) == 5 * size // 64 * 64
    for end in range(5, 12):
        rig.tell(rig.stored(WORD[: end + 1], end))
        assert rig.usable(WORD) == (end + 1) * size // 64 * 64
    other = (*WORD[:3], 99, *WORD[4:])
    rig.tell(rig.stored(other, 3))  # a branch, wherever that is in a canonical block
    assert rig.usable(other) == 12 * size // 64 * 64
    rig.tell(rig.removed(WORD[:2]))
    assert rig.usable(other) == rig.usable(WORD) == size // 64 * 64
    rig.tell(rig.stored(WORD[:2], 1))
    assert rig.usable(other) == rig.usable(WORD) == 12 * size // 64 * 64
    words = [word[: end + 1] for word in (WORD, other) for end in range(12)]
    rig.tell(rig.removed(*words))
    assert (len(rig.map), rig.index.blocks) == (0, 0)


def test_copies_are_counted_and_tiers_apart() -> None:
    rig = Rig(64)
    rig.tell(rig.stored(WORD, medium="GPU"), rig.stored(WORD, medium="GPU"), rig.stored(WORD[:4], medium="CPU"))
    rig.tell(rig.removed(WORD, medium="GPU"))
    assert rig.usable(WORD) == 12 * 64
    rig.tell(*(rig.removed(WORD[:end], medium="GPU") for end in (12, 3)))
    assert rig.usable(WORD) == 11 * 64
    rig.tell(rig.removed(WORD[:3], medium="GPU"))  # its last copy there
    assert rig.usable(WORD) == 11 * 64
    rig.tell(rig.removed(WORD[:3], medium="CPU"))
    assert rig.usable(WORD) == 2 * 64


def test_cleared() -> None:
    rig = Rig(16)
    rig.tell(rig.stored(WORD), AllCleared())
    assert (rig.usable(WORD), len(rig.map)) == (0, 0)
    rig.tell(rig.stored(WORD))
    assert rig.usable(WORD) == 12 * 16


def test_what_cannot_be_placed_is_counted() -> None:
    rig = Rig(64)
    rig.tell(rig.stored(WORD, 3))
    assert (rig.usable(WORD), rig.map.unplaced) == (0, 9)
    image = (None, None, (("image", 0),))
    rig.tell(rig.stored(WORD[:4], extra=(*image, None)))
    assert (rig.usable(WORD), rig.map.unplaced) == (2 * 64, 11)
    rig.tell(rig.removed((5, 5)))


def test_salt_and_adapter_are_of_the_key() -> None:
    rig = Rig(64)
    rig.tell(rig.stored(WORD, adapter="lora", extra=(("lora", "salt"), *((("lora",),) * 11))))
    assert rig.usable(WORD) == rig.usable(WORD, salt="salt") == 0
    assert rig.usable(WORD, salt="salt", adapter="lora") == 12 * 64


@pytest.mark.parametrize("first", ["dense", "state"])
def test_states_of_a_hybrid_model(first: str) -> None:
    rig = Rig(192)
    events = [rig.stored(WORD[:6], group=3, kind="full_attention"), rig.sparse(WORD[:6], [2, 5], 0, "mamba")]
    rig.tell(*(events if first == "dense" else events[::-1]))
    assert rig.usable(WORD) == 5 * 192
    assert rig.usable(WORD[:4]) == 2 * 192
    rig.tell(rig.removed(WORD[:5], group=0))
    assert rig.usable(WORD) == 2 * 192
    rig.tell(rig.removed(WORD[:2], group=3))
    assert rig.usable(WORD) == 0


def test_windows_and_kinds_that_are_not_known() -> None:
    rig = Rig(16)
    rig.tell(rig.stored(WORD[:12], group=0, kind="full_attention"))
    rig.tell(rig.sparse(WORD[:12], [5, 6, 7, 8], 1, "sliding_window", 65))
    assert rig.usable(WORD) == 128  # one canonical block of four
    rig.tell(rig.sparse(WORD[:12], [], 1, "sliding_window", 65))
    rig.tell(rig.sparse(WORD[:12], list(range(1, 5)), 2, "of_tomorrow"))
    assert rig.usable(WORD) == 0
    rig.tell(rig.sparse(WORD[:12], list(range(5, 9)), 2, "of_tomorrow"))
    assert rig.usable(WORD) == 128
    rig.tell(rig.removed(WORD[:8], group=1))
    assert rig.usable(WORD) == 0


def test_another_dense_group_must_hold_everything_too() -> None:
    rig = Rig(64)
    rig.tell(rig.stored(WORD, group=0, kind="full_attention"), rig.stored(WORD[:3], group=1, kind="full_attention"))
    assert rig.usable(WORD) == 3 * 64
    assert rig.index.groups(PLACE) == {1: 0}


def test_our_engines_hashes_are_canonical() -> None:
    rig = Rig(64, canonical=True)
    hashes = tuple(block_hashes(tokens_of(WORD, 64), root()))
    dense = BlocksStored(hashes, None, tuple(tokens_of(WORD, 64)), 64, "", 0, "full_attention")
    state = BlocksStored(hashes[5:6], hashes[4], tuple(tokens_of(WORD[5:6], 64)), 64, "", 1, "mamba")
    rig.tell(dense, state)
    assert rig.usable(WORD) == 6 * 64
    rig.tell(BlocksRemoved(hashes[8:], "", 0))
    assert rig.usable(WORD) == 6 * 64
    rig.tell(BlocksRemoved(hashes[3:], "", 0))
    assert rig.usable(WORD) == 0
    rig.tell(BlocksStored(hashes[3:], hashes[2], tuple(tokens_of(WORD[3:], 64)), 64, "", 0, "full_attention"))
    assert rig.usable(WORD) == 6 * 64
    rig.tell(BlocksRemoved(hashes[5:], ""))
    assert rig.usable(WORD) == 0
    assert len(rig.map) == 0


WORDS = st.lists(st.integers(1, 2), min_size=1, max_size=14).map(tuple)


class Engine(RuleBasedStateMachine):
    """An engine that holds copies of blocks, and a walk over what it holds."""

    @initialize(size=st.sampled_from([1, 16, 20, 24, 48, 64, 96, 128]))
    def start(self, size: int) -> None:
        self.rig = Rig(size)
        self.held: Counter[tuple[str, Word]] = Counter()

    @rule(word=WORDS, tier=st.sampled_from(["GPU", "GPU", "CPU"]), cut=st.integers(0, 13))
    def stored(self, word: Word, tier: str, cut: int) -> None:
        cut = min(cut, len(word) - 1)
        if cut and not any((name, word[:cut]) in self.held for name in ("GPU", "CPU")):
            cut = 0
        self.rig.tell(self.rig.stored(word, cut, medium=tier))
        self.held.update((tier, word[: end + 1]) for end in range(cut, len(word)))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 4))
    def removed(self, data: st.DataObject, count: int) -> None:
        tier, word = data.draw(st.sampled_from(sorted(self.held)))
        gone = [word[:end] for end in range(len(word), 0, -1)][:count]
        self.rig.tell(self.rig.removed(*gone, medium=tier))
        for block in gone:
            self.held[tier, block] -= 1
            if self.held[tier, block] <= 0:
                del self.held[tier, block]

    @rule(word=WORDS)
    def ask(self, word: Word) -> None:
        size = self.rig.size
        blocks = 0
        while (blocks + 1) * 64 <= len(word) * size:
            low, high = blocks * 64 // size, -(-(blocks + 1) * 64 // size)
            needed = [word[: end + 1] for end in range(low, high)]
            if not any(all((tier, block) in self.held for block in needed) for tier in ("GPU", "CPU")):
                break
            blocks += 1
        assert self.rig.usable(word) == blocks * 64

    @invariant()
    def nothing_is_left_behind(self) -> None:
        if hasattr(self, "rig"):
            assert self.rig.map.unplaced == 0
            for key in self.rig.map._copies:
                assert key[1] in self.rig.map._stretches
            if not self.held:
                assert (len(self.rig.map), self.rig.index.blocks) == (0, 0)


TestEngine = pytest.mark.slow(Engine.TestCase)
TestEngine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
