"""Every head of every receiver rank comes once, from a sender rank that has it."""

from __future__ import annotations

from collections import Counter

import pytest

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import LocalError
from prfaas.core.ids import TransferId
from prfaas.core.transfer.shards import cut, fixed_part, held_heads, rank_transfer, shares, sources, whole_transfer

RANKS = (1, 2, 4, 8)
LAYOUT = KVLayout(
    "r",
    (
        Part(0, "k", PartKind.TOKENS, (8, 64), "bfloat16"),
        Part(1, "k", PartKind.WINDOW, (4, 64), "bfloat16", 128),
        Part(2, "k", PartKind.TOKENS, (2, 64), "bfloat16"),
        Part(3, "k", PartKind.TOKENS, (1, 64), "bfloat16", sharded=False),
        Part(4, "kv", PartKind.TOKENS, (1, 576), "bfloat16", sharded=False),
        Part(5, "k", PartKind.TOKENS, (16, 64), "bfloat16"),
    ),
)
STATES = KVLayout(
    "r",
    (
        Part(0, "conv.0", PartKind.STATE, (1, 3, 1024), "bfloat16"),
        Part(0, "recurrent.0", PartKind.STATE, (8, 64, 64), "float32"),
    ),
)
"""As each rank has them."""


@pytest.mark.parametrize("receivers", RANKS)
@pytest.mark.parametrize("senders", RANKS)
def test_the_union_is_exact_and_nothing_comes_twice(senders, receivers):
    for part in LAYOUT.parts:
        for receiver in range(receivers):
            came = Counter[int]()
            for share in shares(LAYOUT, senders, receivers, receiver):
                if share.part == (part.layer, part.name):
                    first, stop = held_heads(part, share.source, senders)
                    assert first <= share.heads[0] < share.heads[1] <= stop, "the sender has it"
                    came.update(range(*share.heads))
            wanted = range(*held_heads(part, receiver, receivers))
            assert came == Counter(wanted)


@pytest.mark.parametrize("ranks", RANKS)
def test_all_ranks_together_hold_all_heads(ranks):
    for part in LAYOUT.parts:
        held = [head for rank in range(ranks) for head in range(*held_heads(part, rank, ranks))]
        assert sorted(set(held)) == list(range(part.shape[0]))
        copies = set(Counter(held).values())
        assert copies == ({ranks} if not part.sharded else {max(1, ranks // part.shape[0])})


def test_equal_sides_pair_their_ranks():
    for rank in range(4):
        assert {share.source for share in shares(LAYOUT, 4, 4, rank)} == {rank}
        assert {share.source for share in shares(STATES, 4, 4, rank)} == {rank}


def test_copies_are_fetched_from_different_senders():
    sources = [share.source for rank in range(8) for share in shares(LAYOUT, 8, 8, rank) if share.part == (4, "kv")]
    assert sources == list(range(8))


def test_a_state_that_would_be_cut_otherwise_is_refused_by_name():
    with pytest.raises(LocalError, match=r"layer 0 conv\.0: a state of 2 ranks cannot be given to 4"):
        shares(STATES, 2, 4, 0)


def test_heads_that_cannot_be_dealt_out():
    layout = KVLayout("r", (Part(3, "k", PartKind.TOKENS, (6, 64), "bfloat16"),))
    with pytest.raises(LocalError, match="layer 3 k: 6 heads cannot be dealt out to 4 ranks"):
        shares(layout, 4, 1, 0)
    with pytest.raises(LocalError, match="no rank 2 of 2"):
        held_heads(layout.parts[0], 2, 2)


def test_a_state_is_given_as_it_is():
    assert [share.heads for share in shares(STATES, 4, 4, 1)] == [(0, 1), (0, 8)]
    assert cut(STATES, 1, 4) == STATES
    assert (fixed_part(STATES), fixed_part(LAYOUT)) == ("layer 0 conv.0", "")


@pytest.mark.parametrize("ranks", RANKS)
def test_what_a_rank_holds(ranks):
    for rank in range(ranks):
        for part, whole in zip(cut(LAYOUT, rank, ranks).parts, LAYOUT.parts, strict=True):
            first, stop = held_heads(whole, rank, ranks)
            assert (part.shape, part.dtype, part.sharded) == (
                (stop - first, *whole.shape[1:]),
                whole.dtype,
                whole.sharded,
            )


def test_only_ranks_that_have_something_are_asked():
    few = KVLayout("r", (Part(0, "k", PartKind.TOKENS, (2, 64), "bfloat16"),))
    assert [sources(few, 8, 2, receiver) for receiver in (0, 1)] == [(0,), (4,)]
    assert sources(few, 2, 1, 0) == (0, 1)
    assert [sources(few, 4, 8, receiver) for receiver in range(8)] == [(0,), (0,), (1,), (1,), (2,), (2,), (3,), (3,)]


@pytest.mark.parametrize("name", ["r.1", "a client's@0/2.1", "", "@", "r@0/2.", "r@2/2", "r@0/65", "r@00/2", "r@0/0"])
def test_names_of_whole_transfers(name):
    assert whole_transfer(TransferId(name)) == name


def test_names_of_ranks_shares():
    for ranks in (*RANKS, 64):
        for rank in range(ranks):
            assert whole_transfer(rank_transfer(TransferId("r@1/2.1"), rank, ranks)) == "r@1/2.1"
