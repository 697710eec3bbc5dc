"""Two tiers, step by step: who waits for what, what is moved once and not again, and what fails."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.cache.chains import SPECS, WORDS, Chains

from prfaas.core.cache.moves import Move
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.tiers import TieredPool
from prfaas.core.errors import InvariantError, LocalError

HYBRID = PoolSpec(64, 2)
ONE, OTHER = list(range(10)), list(range(100, 110))


def serve(pool: TieredPool, chain: list[int], *, settle: bool = True) -> int:
    """One request with a snapshot at its end; tokens that hit."""
    tokens = len(chain) * 64
    grant = pool.begin("one", chain, tokens, snapshots=1)
    assert grant is not None
    if settle:
        settled(pool)
    pool.end("one", chain, tokens, [tokens])
    pool.validate()
    return grant.cached_tokens


def settled(pool: TieredPool) -> list[Move]:
    """All moves are made; which."""
    made: list[Move] = []
    while moves := pool.take_moves():
        for move in moves:
            pool.moved(move.number)
        made += moves
    pool.validate()
    return made


@given(
    spec=st.sampled_from(SPECS),
    capacity=st.integers(4, 30),
    words=st.lists(st.tuples(WORDS, st.lists(st.integers(1, 7), max_size=3), st.booleans()), max_size=25),
)
def test_without_a_host_it_is_a_prefix_pool(
    spec: PoolSpec, capacity: int, words: list[tuple[list[int], list[int], bool]]
) -> None:
    plain, tiered, chains = PrefixPool(spec, capacity), TieredPool(spec, capacity, 0), Chains()
    for number, (word, stops, ends) in enumerate(words):
        chain = chains.of(word)
        tokens = len(chain) * spec.block_tokens
        lengths = [stop * spec.snapshot_tokens for stop in stops]
        assert tiered.usable(chain, tokens) == plain.usable(chain, tokens)
        one, two = plain.begin(number, chain, tokens), tiered.begin(number, chain, tokens)
        assert (one is None) == (two is None)
        if one is None or two is None:
            continue
        assert (one.cached_tokens, one.shared_tokens, one.blocks) == (two.cached_tokens, two.shared_tokens, two.blocks)
        assert vars_of(plain.held(number)) == vars_of(tiered.held(number))
        if ends:
            kept, same = (pool.end(number, chain, tokens, lengths[:1], lengths[1:]) for pool in (plain, tiered))
            assert (kept.tokens, kept.blocks, kept.states) == (same.tokens, same.blocks, same.states)
        else:
            plain.drop(number)
            tiered.drop(number)
    assert tiered.take_moves() == []
    assert plain.hit_tokens == tiered.near_tokens
    tiered.validate()


def vars_of(held: object) -> list[object]:
    return [getattr(held, name) for name in ("prefix", "state", "own")]


def test_who_gets_what_is_read_waits_and_what_comes_back_is_a_hit() -> None:
    pool = TieredPool(HYBRID, 20, 40)
    assert serve(pool, ONE) == 0
    assert pool.take_moves() == []
    assert pool.begin("other", OTHER, 640, snapshots=1) is not None
    assert not pool.ready("other")
    (out,) = pool.take_moves()
    assert out.to_host
    assert len(out.near) == len(out.far) == 12
    assert pool.usable(ONE, 640) == 0  # in neither tier until it is there
    assert pool.moved(out.number).ready == ["other"]
    assert pool.fetched(ONE, 640) == pool.usable(ONE, 640) == 640
    pool.end("other", OTHER, 640, [640])

    grant = pool.begin("again", [*ONE, 10], 704, snapshots=1)
    assert grant is not None
    assert (grant.cached_tokens, grant.shared_tokens) == (640, 640)
    (other,) = pool.take_moves()  # what is to come waits too: its blocks are being read
    assert other.to_host
    assert pool.moved(other.number).ready == []
    (back,) = pool.take_moves()
    assert not back.to_host
    assert set(back.far) == set(out.far)
    pool.validate()
    assert not pool.ready("again")
    assert pool.moved(back.number).ready == ["again"]
    held = pool.held("again")
    assert (*held.prefix, *held.state) == back.near
    pool.end("again", [*ONE, 10], 704, [704])
    assert (pool.near_tokens, pool.host_tokens) == (0, 640)
    assert (pool.saved_blocks, pool.fetched_blocks) == (24, 12)
    pool.validate()


def test_what_the_host_still_has_is_not_copied_again() -> None:
    pool = TieredPool(HYBRID, 20, 60)
    serve(pool, ONE)
    serve(pool, OTHER)
    serve(pool, ONE)
    saved = pool.saved_blocks
    serve(pool, OTHER)
    assert pool.host_tokens == 1280
    assert pool.saved_blocks == saved
    assert settled(pool) == []


def test_what_came_back_goes_first_in_the_host() -> None:
    pool = TieredPool(HYBRID, 20, 60)
    for chain in (ONE, OTHER, list(range(200, 210))):
        serve(pool, chain)
    host = pool.host
    assert host is not None
    oldest = host._store.ages.oldest()
    assert oldest is not None
    assert oldest.ids == ONE
    serve(pool, OTHER)
    oldest = host._store.ages.oldest()
    assert oldest is not None
    assert oldest.ids == OTHER
    assert serve(pool, ONE) == 640  # evicts OTHER, of which only the host has a copy now
    oldest = host._store.ages.oldest()
    assert oldest is not None
    assert oldest.ids == ONE


def test_a_move_out_that_fails_has_brought_nothing() -> None:
    pool = TieredPool(HYBRID, 20, 40)
    serve(pool, ONE)
    assert pool.begin("other", OTHER, 640, snapshots=1) is not None
    (out,) = pool.take_moves()
    assert pool.failed(out.number).ready == ["other"]
    pool.validate()
    assert pool.usable(ONE, 640) == 0
    assert pool.host is not None
    assert pool.host.used_blocks == 0
    assert (pool.saved_blocks, pool.failed_blocks) == (0, 12)
    with pytest.raises(LocalError, match=f"no move {out.number} is under way"):
        pool.failed(out.number)


@pytest.mark.parametrize("spec", [HYBRID, PoolSpec(64)])
def test_a_move_back_that_fails_ends_its_request_and_is_forgotten(spec: PoolSpec) -> None:
    pool = TieredPool(spec, 10 + 5 * spec.snapshot_blocks, 60)
    serve(pool, ONE)
    serve(pool, OTHER)
    assert pool.begin("again", [*ONE], 640) is not None
    moves = pool.take_moves()
    for move in moves:
        if move.to_host:
            pool.moved(move.number)
    back = [move for move in [*moves, *pool.take_moves()] if not move.to_host]
    assert pool.failed(back[0].number).over == ["again"]
    pool.validate()
    with pytest.raises(LocalError, match="again holds no blocks"):
        pool.ready("again")
    assert pool.near.working_blocks == 0
    assert pool.usable(ONE, 640) == 0
    assert serve(pool, ONE) == 0


def test_who_is_dropped_leaves_its_blocks_to_the_move() -> None:
    pool = TieredPool(HYBRID, 40, 60)
    for chain in (ONE, OTHER, list(range(200, 210)), list(range(300, 310))):
        serve(pool, chain)
    assert pool.begin("again", ONE, 640) is not None
    settle_out(pool)
    pool.drop("again")
    assert pool.near.working_blocks > 0
    pool.validate()
    (back,) = pool.take_moves()
    with pytest.raises(LocalError, match="holds no blocks"):
        pool.ready("again")
    assert pool.begin("again", ONE, 640, fetch=False) is not None  # the name is free
    pool.drop("again")
    assert pool.moved(back.number).ready == []
    settled(pool)
    assert (pool.near.working_blocks, pool.moving, pool.host_tokens) == (0, 0, 0)
    pool.validate()


def settle_out(pool: TieredPool) -> None:
    """Moves out are made; those back are told, and not taken."""
    while any(move.to_host for move in pool._out):
        move = next(move for move in pool._out if move.to_host)
        pool._out.remove(move)
        pool.moved(move.number)


def test_without_fetching_only_the_accelerator_counts() -> None:
    pool = TieredPool(HYBRID, 20, 40)
    serve(pool, ONE)
    serve(pool, OTHER)
    grant = pool.begin("again", ONE, 640, fetch=False)
    assert grant is not None
    assert (grant.cached_tokens, grant.shared_tokens) == (0, 640)


def test_a_host_that_is_all_in_use_loses_what_is_evicted() -> None:
    pool = TieredPool(HYBRID, 20, 12)
    serve(pool, ONE)
    assert pool.begin("other", OTHER, 640, snapshots=1) is not None
    (out,) = pool.take_moves()  # not made yet: it fills the host
    pool.drop("other")
    assert pool.begin("other", OTHER, 640, snapshots=1) is not None
    pool.moved(out.number)
    pool.end("other", OTHER, 640, [640])
    assert pool.begin("again", ONE, 640) is not None  # ONE is pinned in the host, OTHER has no room there
    assert pool.lost_blocks == 2
    pool.validate()


def test_misuse_is_refused() -> None:
    with pytest.raises(LocalError, match="host_blocks: got -1; expected at least 0"):
        TieredPool(HYBRID, 20, -1)
    pool = TieredPool(HYBRID, 20, 20)
    assert pool.begin("one", ONE, 640) is not None
    with pytest.raises(InvariantError, match="one has begun already"):
        pool.begin("one", ONE, 640)
    pool.drop("one")
    pool.drop("one")
    with pytest.raises(LocalError, match="one is not at work"):
        pool.end("one", ONE, 640)
    assert not pool.acknowledge("one")


def test_the_audit_finds_a_block_that_is_written_while_it_is_read() -> None:
    pool = TieredPool(HYBRID, 20, 40)
    serve(pool, ONE)
    assert pool.begin("other", OTHER, 640, snapshots=1) is not None
    pool._work["other"].waits.clear()
    with pytest.raises(InvariantError, match="other waits for set"):
        pool.validate()
