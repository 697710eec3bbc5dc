"""Canonical block hashes: fixed values, what they depend on, and that a prefix has the hashes of its start."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from prfaas.model.blockhash import BLOCK_TOKENS, CacheKey, block_hashes

KEY = CacheKey("model@1", "seed")
IDS = st.lists(st.integers(0, 2**32 - 1), max_size=3 * BLOCK_TOKENS)


def test_golden_values() -> None:
    """Programs of different versions must agree: these never change."""
    assert CacheKey("").root() == 2993586987658114927
    assert KEY.root() == 4796000717215054437
    assert block_hashes(range(200), KEY.root()) == [8283646271135819475, 1747132754710119877, 828900266503442841]


def test_as_documented() -> None:
    first = b"".join(i.to_bytes(4, "little") for i in range(64))
    second = b"".join(i.to_bytes(4, "little") for i in range(64, 128))
    one = xxh3_64_intdigest(first, KEY.root())
    assert block_hashes(range(130), KEY.root()) == [one, xxh3_64_intdigest(second, one)]


@pytest.mark.parametrize("field", ["revision", "seed", "tenant", "salt", "adapter"])
def test_every_part_of_the_key_counts(field: str) -> None:
    parts = {"revision": "a", "seed": "b", "tenant": "c", "salt": "d", "adapter": "e"}
    assert CacheKey(**parts).root() != CacheKey(**parts | {field: "x"}).root()


def test_parts_do_not_run_into_each_other() -> None:
    assert CacheKey("m", tenant="ab", salt="c").root() != CacheKey("m", tenant="a", salt="bc").root()


@given(IDS, st.integers(0, 3 * BLOCK_TOKENS))
def test_a_prefix_has_the_hashes_of_its_start(ids: list[int], cut: int) -> None:
    whole = block_hashes(ids, KEY.root())
    assert len(whole) == len(ids) // BLOCK_TOKENS
    assert block_hashes(ids[:cut], KEY.root()) == whole[: min(cut, len(ids)) // BLOCK_TOKENS]
    at = min(cut, len(ids)) // BLOCK_TOKENS
    assert block_hashes(ids[at * BLOCK_TOKENS :], whole[at - 1] if at else KEY.root()) == whole[at:]


@given(IDS)
def test_however_ids_come(ids: list[int]) -> None:
    expected = block_hashes(ids, 7)
    assert (
        block_hashes(tuple(ids), 7) == block_hashes(array("I", ids), 7) == block_hashes(array("Q", ids), 7) == expected
    )


@given(st.lists(st.integers(0, 9), min_size=128, max_size=128), st.integers(0, 127), st.integers(1, 9))
def test_a_changed_token_changes_every_hash_from_there(ids: list[int], at: int, by: int) -> None:
    other = ids.copy()
    other[at] += by
    same = [a == b for a, b in zip(block_hashes(ids, 0), block_hashes(other, 0), strict=True)]
    assert same == [block < at // BLOCK_TOKENS for block in range(2)]


def test_ids_that_do_not_fit() -> None:
    for wrong in ([-1], [2**32]):
        with pytest.raises(OverflowError):
            block_hashes(wrong, 0)
