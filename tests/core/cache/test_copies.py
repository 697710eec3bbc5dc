"""Requests that hold more than their share, pools that tell what changed, and prefixes from elsewhere that are cold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cache.chains import SPECS

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import LocalError

HYBRID = PoolSpec(64, 2)


def stored(pool: PrefixPool, blocks: int) -> list[int]:
    """The chain of a prefix of so many blocks, which `pool` holds now."""
    chain = list(range(blocks))
    pool.insert(chain, blocks * 64, [blocks * 64])
    return chain


@pytest.mark.parametrize("spec", [PoolSpec(64), HYBRID])
def test_a_copy_takes_room_for_all_tokens(spec: PoolSpec) -> None:
    pool = PrefixPool(spec, 40)
    chain = stored(pool, 6)
    grant = pool.begin("a", chain, 10 * 64, more=3, copies=1)
    assert grant is not None
    assert grant.cached_tokens == 6 * 64
    assert grant.blocks == pool.working_blocks == 10 + spec.snapshot_blocks + 3
    pool.validate()
    kept = pool.end("a", list(range(10)), 10 * 64, [10 * 64])
    assert len(kept.blocks) == 4
    assert pool.working_blocks == 0
    pool.validate()


def test_a_copy_that_never_fits_beside_its_prefix_is_none() -> None:
    pool = PrefixPool(HYBRID, 20)
    chain = stored(pool, 8)
    grant = pool.begin("a", chain, 12 * 64, copies=1)
    assert grant is not None
    assert (grant.cached_tokens, grant.shared_tokens, grant.blocks) == (0, 8 * 64, 14)
    pool.validate()


def test_without_state_a_part_of_the_prefix_is_better_than_none() -> None:
    pool = PrefixPool(PoolSpec(64), 20)
    chain = stored(pool, 10)
    grant = pool.begin("a", chain, 14 * 64, copies=1)
    assert grant is not None
    assert (grant.cached_tokens, grant.shared_tokens, grant.blocks) == (6 * 64, 10 * 64, 14)
    pool.validate()
    assert PrefixPool(PoolSpec(64), 3).begin("a", [], 4 * 64, copies=1) is None


def test_a_pool_that_does_not_tell_says_so() -> None:
    with pytest.raises(LocalError, match="does not tell"):
        PrefixPool(HYBRID, 8).changes()


@given(spec=st.sampled_from(SPECS), capacity=st.integers(8, 30), words=st.lists(st.integers(1, 9), max_size=30))
def test_changes_add_up_to_what_is_stored(spec: PoolSpec, capacity: int, words: list[int]) -> None:
    """Whoever keeps bytes by them has those of each stored block and of no other, whatever was evicted between."""
    pool, held = PrefixPool(spec, capacity, tells=True), set[int]()
    for number, blocks in enumerate(words):
        chain = [number // 2, *range(1000 * (number // 3), 1000 * (number // 3) + blocks)]
        tokens = len(chain) * spec.block_tokens
        stops = [tokens - tokens % spec.snapshot_tokens, spec.snapshot_tokens]
        if number % 2:
            pool.insert(chain, tokens, stops[:1], stops[1:])
        elif pool.begin(number, chain, tokens) is not None:
            pool.end(number, chain, tokens, stops[:1], stops[1:])
        for block, there in pool.changes().items():
            (held.add if there else held.discard)(block)
        assert len(held) == pool.prefix_blocks
        assert held.isdisjoint(pool._store.free.numbers())
    assert pool.changes() == {}


def test_a_cold_prefix_from_elsewhere_takes_only_free_room() -> None:
    pool = PrefixPool(HYBRID, 12)
    chain = stored(pool, 4)
    other = [100, 101, 102]
    pool.insert(other, 3 * 64, spare=[3 * 64])
    assert pool.usable(other, 3 * 64) == 3 * 64
    pool.insert([200, 201], 2 * 64, [2 * 64])
    assert pool.usable(other, 3 * 64) == 0
    assert pool.usable(chain, 4 * 64) == 4 * 64
    pool.validate()
