"""What the index answers, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.errors import InvariantError, LocalError
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.answer import Source, Usable
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Known, Place
from prfaas.core.index.resume import resume_points

PD, FAR = ClusterName("pd"), ClusterName("far")
A, B = Place(PD, NodeName("a")), Place(PD, NodeName("b"))
C, C1 = Place(FAR, NodeName("c")), Place(FAR, NodeName("c"), 1)
CHAIN = [1000 + number for number in range(300)]


def index(*places: Place, groups: dict[int, int] | None = None) -> PrefixIndex:
    made = PrefixIndex()
    for place in places:
        assert made.open(place, Epoch(1), groups or {})
    return made


def lengths(made: PrefixIndex, chain: list[int] = CHAIN) -> dict[Place, int]:
    made.validate()
    return {found.place: found.tokens // 64 for found in made.usable(chain).held}


def test_the_longest_prefix_by_node_and_cluster() -> None:
    made = index(A, B, C, C1)
    made.stored(A, CHAIN[:100], None)
    made.stored(B, CHAIN[:100], None)
    made.stored(B, CHAIN[100:130], CHAIN[99])
    made.stored(C, CHAIN[:7], None)
    made.stored(C1, CHAIN, None)
    answer = made.usable(CHAIN)
    assert answer.clusters() == {PD: 130 * 64, FAR: 300 * 64}
    assert answer.nodes(PD) == {"a": 100 * 64, "b": 130 * 64}
    assert answer.nodes(FAR) == {"c": 300 * 64}  # the better of its ranks
    assert answer.in_cluster(ClusterName("elsewhere")) == 0
    assert lengths(made, CHAIN[:50]) == {A: 50, B: 50, C: 7, C1: 50}
    assert made.usable([]).held == made.usable([5]).held == ()


def test_an_orphan_counts_again_when_its_parent_is_back() -> None:
    made = index(A, B)
    made.stored(A, CHAIN, None)
    made.stored(B, CHAIN, None)
    made.removed(A, [CHAIN[10]])
    assert lengths(made) == {A: 10, B: 300}
    made.stored(A, [CHAIN[10]], CHAIN[9])
    assert lengths(made) == {A: 300, B: 300}


def test_what_comes_before_its_parent_waits() -> None:
    made = index(A)
    made.stored(A, CHAIN[200:], CHAIN[199])
    made.stored(A, CHAIN[100:200], CHAIN[99])
    assert lengths(made) == {}
    made.stored(A, CHAIN[:100], None)
    assert lengths(made) == {A: 300}


def test_one_copy_does_not_hide_another() -> None:
    made = index(A, B)
    made.stored(A, CHAIN[:80], None, tier="GPU")
    made.stored(A, CHAIN[40:90], CHAIN[39], tier="CPU")
    made.stored(B, CHAIN[:80], None, tier="GPU")
    made.removed(A, CHAIN[40:80], tier="GPU")
    assert lengths(made) == {A: 90, B: 80}  # the rest of it is in the other tier
    made.removed(A, CHAIN[60:], tier="CPU")
    assert lengths(made) == {A: 60, B: 80}
    made.removed(A, CHAIN[:80])
    assert lengths(made) == {B: 80}


def test_told_twice_or_of_what_is_not_there() -> None:
    made = index(A)
    made.stored(A, CHAIN[:10], None)
    made.stored(A, CHAIN[:10], None)
    made.removed(A, [7, *CHAIN[8:12]])
    made.removed(A, [7, *CHAIN[8:12]])
    made.stored(A, [], None)
    assert lengths(made) == {A: 8}
    assert made.blocks == 8


def test_state_is_kept_apart_from_dense_blocks() -> None:
    made = index(A, groups={1: 1})
    made.stored(A, CHAIN[:200], None, group=0)
    assert lengths(made) == {A: 0}  # nothing to resume from
    made.stored(A, [CHAIN[63], CHAIN[150], CHAIN[250]], None, group=1)
    assert made.usable(CHAIN).held == (Usable(A, 151 * 64, 200 * 64, Known.WHOLLY),)
    made.removed(A, [CHAIN[150]], group=1)
    assert lengths(made) == {A: 64}
    assert lengths(made, CHAIN[:63]) == {A: 0}
    made.stored(A, CHAIN[200:], CHAIN[199], group=0)
    assert lengths(made) == {A: 251}  # the state that was told of before its block
    made.removed(A, [CHAIN[250]])  # of all groups
    assert lengths(made) == {A: 64}


def test_a_state_counts_for_the_prompts_that_go_through_its_block() -> None:
    made = index(A, groups={1: 1})
    made.stored(A, CHAIN[:4], None)
    made.stored(A, [7001, 7002], CHAIN[0])  # leaves the run of the others after its first block
    made.stored(A, [CHAIN[2]], None, group=1)
    assert lengths(made) == {A: 3}
    assert lengths(made, [CHAIN[0], 7001, 7002]) == {A: 0}
    made.stored(A, [7002], None, group=1)
    assert lengths(made, [CHAIN[0], 7001, 7002]) == {A: 3}


def test_a_window_needs_its_last_blocks() -> None:
    made = index(A, groups={1: 3})
    made.stored(A, CHAIN[:100], None)
    made.stored(A, CHAIN[:2], None, group=1)
    assert lengths(made) == {A: 2}  # the prompt has no more before
    made.stored(A, CHAIN[61:63], None, group=1)
    assert lengths(made) == {A: 2}
    made.stored(A, CHAIN[63:70], None, group=1)
    assert lengths(made) == {A: 70}
    made.removed(A, [CHAIN[67]], group=1)
    assert lengths(made) == {A: 67}


@given(st.integers(0, 2**40), st.integers(0, 45))
def test_resume_points_are_those_of_a_walk(mask: int, needed: int) -> None:
    def held(end: int) -> bool:
        first = max(0, end - needed + 1) if needed else 0
        return all(mask >> at & 1 for at in range(first, end + 1))

    assert resume_points(mask, needed) & (1 << 42) - 1 == sum(held(end) << end for end in range(42))


def test_what_is_unknown_is_in_no_answer() -> None:
    made = index(A, B)
    made.stored(A, CHAIN[:9], None)
    made.stored(B, CHAIN[:5], None)
    made.mark(A, Known.UNKNOWN)
    answer = made.usable(CHAIN)
    assert answer.in_cluster(PD) == 5 * 64
    assert answer.unknown == (A,)
    assert not answer.tells_all_of(PD)
    made.mark(A, Known.PARTLY)
    assert made.usable(CHAIN).in_cluster(PD) == 9 * 64
    assert not made.usable(CHAIN).tells_all_of(PD)
    made.mark(A, Known.WHOLLY)
    assert made.usable(CHAIN).tells_all_of(PD)
    assert made.places() == {A: (1, Known.WHOLLY), B: (1, Known.WHOLLY)}


def test_a_restart_drops_what_was_held_and_an_old_incarnation_is_refused() -> None:
    made = index(A, B)
    made.stored(A, CHAIN, None)
    made.stored(B, CHAIN[:3], None)
    assert not made.open(A, Epoch(1))
    assert made.open(A, Epoch(2))
    assert lengths(made) == {B: 3}
    assert made.blocks == 3
    assert not made.open(A, Epoch(1))
    made.close(A)
    made.close(A)
    with pytest.raises(LocalError, match="is not open"):
        made.stored(A, CHAIN, None)


def test_the_best_source_of_a_copy() -> None:
    made = index(A, B, C, C1)
    made.stored(B, CHAIN[:20], None)
    assert made.usable(CHAIN).source(B) is None
    assert made.usable(CHAIN).source(A) == Source(B, 0, 20 * 64)
    made.stored(C, CHAIN[:20], None)
    made.stored(A, CHAIN[:4], None)
    assert made.usable(CHAIN).source(A) == Source(B, 4 * 64, 20 * 64)  # its own cluster's
    assert made.usable(CHAIN).source(C1) == Source(C, 0, 20 * 64)
    made.stored(C1, CHAIN[:21], None)
    assert made.usable(CHAIN).source(A) == Source(C1, 4 * 64, 21 * 64)
    third = Place(ClusterName("third"), NodeName("d"))
    made.open(third, Epoch(1))
    assert made.usable(CHAIN[:20]).source(third, near=[PD]) == Source(B, 0, 20 * 64)
    assert made.usable(CHAIN[:20]).source(third, near=[FAR, PD]) == Source(C, 0, 20 * 64)


HASHES = st.lists(st.integers(0, 9), min_size=1, max_size=6)
NONSENSE = st.lists(
    st.tuples(
        st.sampled_from([A, B]), st.booleans(), HASHES, st.none() | st.integers(0, 9), st.sampled_from(["", "x"])
    ),
    max_size=30,
)


@given(NONSENSE, st.sampled_from([1, 2, 64]))
def test_what_is_no_chain_breaks_nothing(told: list[tuple[Place, bool, list[int], int | None, str]], size: int) -> None:
    """Blocks twice, in circles, after different ones: whoever tells so is wrong about itself alone."""
    made = PrefixIndex(size)
    for place in (A, B, C):
        made.open(place, Epoch(1))
    made.stored(C, CHAIN[:9], None)
    for place, stored, hashes, parent, tier in told:
        if stored:
            made.stored(place, hashes, parent, tier=tier)
        else:
            made.removed(place, hashes, tier=tier or None)
        made.validate()
        made.usable(hashes)
        assert {found.place: found.tokens for found in made.usable(CHAIN).held} == {C: 9 * 64}
    for place in (A, B, C):
        made.close(place)
    made.validate()
    assert (made.blocks, made.runs) == (0, 0)


def test_memory_goes_with_what_is_held() -> None:
    made = index(A, B)
    assert made.memory_bytes() < 1000
    for place in (A, B):
        for first in range(0, 300, 10):
            made.stored(place, CHAIN[first : first + 10], CHAIN[first - 1] if first else None)
    assert (made.blocks, made.runs) == (300, 5)  # what follows in small steps is as few runs as what comes at once
    made.cleared(A)
    made.cleared(B)
    assert (made.blocks, made.runs) == (0, 0)


def test_the_audit_notices() -> None:
    made = index(A)
    made.stored(A, CHAIN, None)
    made._tree.runs_of[CHAIN[5]].full = 0
    with pytest.raises(InvariantError, match="prefix index"):
        made.validate()
