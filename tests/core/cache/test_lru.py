"""One request after another, the pool keeps exactly what a plain list in order of use keeps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cache.chains import BLOCK, WORDS, Chains
from tests.core.cache.reference import PlainBlocks, PlainSnapshots

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec

STOPS = st.lists(st.integers(1, 7), max_size=3)
REQUESTS = st.lists(st.tuples(WORDS, st.integers(1, 2 * BLOCK), STOPS, STOPS), max_size=25)


def some_within(chain: list[int], stops: list[int]) -> list[int]:
    return [stop for stop in stops if stop <= len(chain)]


@pytest.mark.parametrize("size", [0, 1, 3])
@given(requests=REQUESTS, capacity=st.integers(4, 30), supersede=st.booleans())
def test_hits_and_evictions_are_those_of_plain_lru(
    size: int, requests: list[tuple[list[int], int, list[int], list[int]]], capacity: int, supersede: bool
) -> None:
    pool = PrefixPool(PoolSpec(BLOCK, size), capacity, supersede=supersede)
    plain = PlainSnapshots(capacity, size, supersede) if size else PlainBlocks(capacity)
    chains = Chains()
    for number, (word, tail, stops, spare) in enumerate(requests):
        chain = chains.of(word)
        tokens = len(chain) * BLOCK + tail
        usable = pool.usable(chain, tokens)
        grant = pool.begin(number, chain, tokens)
        hit = plain.serve(chain, -(-tokens // BLOCK), *(some_within(chain, some) for some in (stops, spare)))
        if hit is None:
            assert grant is None
            assert not pool.can_ever(tokens)
            continue
        assert grant is not None
        assert grant.cached_tokens == hit * BLOCK
        assert usable == grant.cached_tokens or -(-tokens // BLOCK) + 2 * size > capacity
        pool.end(number, chain, tokens, *([stop * BLOCK for stop in some] for some in (stops, spare)))
        assert pool.used_blocks == pool.prefix_blocks == plain.used
        pool.validate()


@given(words=st.lists(WORDS, max_size=12), probe=WORDS)
def test_with_room_nothing_is_forgotten(words: list[list[int]], probe: list[int]) -> None:
    pool = PrefixPool(PoolSpec(BLOCK), 1000)
    chains = Chains()
    for number, word in enumerate(words):
        assert pool.begin(number, chains.of(word), len(word) * BLOCK)
        pool.end(number, chains.of(word), len(word) * BLOCK)
    common = max((sum(probe[: n + 1] == word[: n + 1] for n in range(len(probe))) for word in words), default=0)
    assert pool.usable(chains.of(probe), len(probe) * BLOCK) == common * BLOCK
    assert pool.usable(chains.of(probe), len(probe) * BLOCK - 1) == max(0, min(common, len(probe) - 1)) * BLOCK
