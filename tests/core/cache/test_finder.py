"""What short cuts find (where a request before ended, the answer before) is what the walk from the root finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.cache.chains import SPECS, WORDS, Chains

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.runs import follow
from prfaas.core.cache.spec import PoolSpec

ASKED = st.lists(st.tuples(WORDS, st.lists(st.integers(1, 7), max_size=2), st.booleans()), max_size=30)


@settings(max_examples=200)
@given(st.sampled_from(SPECS), st.integers(4, 30), ASKED)
def test_short_cuts_find_what_the_walk_finds(
    spec: PoolSpec, capacity: int, asked: list[tuple[list[int], list[int], bool]]
) -> None:
    pool, chains = PrefixPool(spec, capacity), Chains()
    known: list[tuple[int, ...]] = []
    for number, (word, stops, ends) in enumerate(asked):
        chain = tuple(chains.of(word))
        known.append(chain)
        tokens = len(chain) * spec.block_tokens
        if pool.begin(number, chain, tokens) is not None:
            if ends:
                pool.end(number, chain, tokens, [stop * spec.snapshot_tokens for stop in stops])
            else:
                pool.drop(number)
        for one in known:
            for _ in range(2):
                node, depth, resume = follow(pool._store.root, one, len(one))
                assert pool._finder.found(one, len(one)) == (node, depth, resume)
    pool.validate()
