"""The pool in small: what is kept, what is held for a receiver, what is refused."""

from __future__ import annotations

import pytest

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.errors import InvariantError, LocalError


def pool_with(chain: list[int], spec: PoolSpec, capacity: int = 20) -> PrefixPool:
    pool = PrefixPool(spec, capacity)
    tokens = len(chain) * spec.block_tokens
    assert pool.begin("first", chain, tokens)
    pool.end("first", chain, tokens, [tokens])
    return pool


def test_attention_resumes_at_every_block_and_state_only_at_its_snapshot() -> None:
    assert pool_with([1, 2, 3, 4], PoolSpec(64)).usable([1, 2, 3, 9], 256) == 192
    hybrid = pool_with([1, 2, 3, 4], PoolSpec(64, 2))
    assert hybrid.usable([1, 2, 3, 9], 256) == 0
    assert hybrid.usable([1, 2, 3, 4, 5], 300) == 256
    assert hybrid.usable([1, 2, 3, 4, 5], 255) == 0
    grant = hybrid.begin("branch", [1, 2, 3, 9], 256)
    assert grant is not None
    assert (grant.cached_tokens, grant.shared_tokens) == (0, 192)


def test_two_requests_that_make_the_same_blocks_keep_them_once() -> None:
    pool = PrefixPool(PoolSpec(64), 20)
    assert pool.begin("a", [1, 2, 3], 192)
    assert pool.begin("b", [1, 2, 3], 200)
    pool.end("a", [1, 2, 3], 192)
    assert pool.end("b", [1, 2, 3], 200).blocks == []
    assert pool.used_blocks == pool.prefix_blocks == 3
    pool.validate()


def test_the_tail_is_held_until_the_receiver_has_it_and_is_no_hit() -> None:
    pool = PrefixPool(PoolSpec(64, 2), 8)
    assert pool.begin("a", [1, 2], 150)
    pool.ship("a", [1, 2], 150, 1000, [128])
    assert pool.working_blocks == 3  # the tail, and the state at 150
    assert pool.usable([1, 2, 3], 192) == 128
    assert pool.begin("b", [5], 64) is None  # 2 blocks and their snapshot are pinned
    assert pool.expire(999) == []
    assert pool.acknowledge("a")
    assert not pool.acknowledge("a")
    assert pool.expire(10_000) == []
    assert pool.working_blocks == 0
    assert pool.begin("b", [5], 64)
    assert not pool.acknowledge("b")  # at work
    pool.validate()


def test_a_lease_ends() -> None:
    pool = PrefixPool(PoolSpec(64), 20)
    for name, lease in (("a", 30), ("b", 10), ("c", 20)):
        assert pool.begin(name, [1], 100)
        pool.ship(name, [1], 100, lease)
    assert pool.expire(25) == ["b", "c"]
    assert pool.working_blocks == 1
    assert pool.usable([1], 64) == 64


def test_a_name_may_come_again_after_its_lease() -> None:
    pool = PrefixPool(PoolSpec(64), 20)
    for lease in (10, 50):
        assert pool.begin("a", [1], 100)
        pool.ship("a", [1], 100, lease)
        if lease == 10:
            assert pool.acknowledge("a")
    assert pool.expire(20) == []
    assert pool.expire(50) == ["a"]


def test_leases_that_are_over_do_not_pile_up() -> None:
    pool = PrefixPool(PoolSpec(64), 20)
    for number in range(1000):
        assert pool.begin(number, [number], 100)
        pool.ship(number, [number], 100, 1 << 60)
        pool.acknowledge(number)
    assert len(pool._leases) < 100
    assert pool.nodes < 30
    pool.validate()


def test_the_oldest_path_goes_first_from_its_end() -> None:
    pool = PrefixPool(PoolSpec(64), 6)
    for chain in ([1, 2, 3], [1, 2, 9]):
        assert pool.begin("", chain, 192)
        pool.end("", chain, 192)
    assert pool.begin("", [7, 8, 6], 192)
    assert pool.usable([1, 2, 3], 192) == 128
    assert pool.usable([1, 2, 9], 192) == 192
    pool.drop("")
    assert pool.begin("", [7, 8, 6, 5], 256)
    assert pool.usable([1, 2, 9], 192) == 128


def test_what_came_from_elsewhere_is_kept_as_far_as_there_is_room() -> None:
    pool = PrefixPool(PoolSpec(64), 4)
    assert pool.begin("busy", [], 64)
    assert pool.insert([1, 2, 3, 4, 5], 320).tokens == 192
    assert pool.usable([1, 2, 3, 4, 5], 320) == 192
    hybrid = PrefixPool(PoolSpec(64, 2), 8)
    kept = hybrid.insert([1, 2, 3, 4, 5], 320, [320, 128])
    assert (kept.tokens, len(kept.blocks), len(kept.states)) == (320, 5, 1)
    assert hybrid.insert([7, 8], 128).tokens == 0  # nothing could resume there
    assert hybrid.snapshots([1, 2, 3, 4, 5], 320) == [320]
    hybrid.validate()


def test_misuse_is_named() -> None:
    pool = PrefixPool(PoolSpec(64, 1), 20)
    assert pool.begin("a", [1], 64)
    with pytest.raises(InvariantError, match="a has begun already"):
        pool.begin("a", [1], 64)
    with pytest.raises(LocalError, match="got length 65; expected a multiple of 64"):
        pool.end("a", [1], 64, [65])
    with pytest.raises(LocalError, match="tokens: got 65; expected at most 64"):
        pool.end("a", [1], 65)
    pool.end("a", [1], 64)  # neither changed anything
    for over in (lambda: pool.end("a", [1], 64), lambda: pool.ship("a", [1], 64, 1), lambda: pool.held("a")):
        with pytest.raises(LocalError, match="a "):
            over()
    pool.drop("a")
    with pytest.raises(LocalError, match="capacity_blocks: got 0"):
        PrefixPool(PoolSpec(64), 0)
    pool.validate()


def test_an_audit_finds_a_block_in_two_states() -> None:
    pool = pool_with([1, 2], PoolSpec(64))
    pool._store.free.give([0])
    with pytest.raises(InvariantError, match="two states"):
        pool.validate()


@pytest.mark.parametrize("refreshed", [False, True])
def test_rows_age_as_snapshots_do(refreshed: bool) -> None:
    """Rows that no snapshot needs go when all else that is kept was used later, and not before."""
    pool = PrefixPool(PoolSpec(64, 2), 24)
    old, rows, snapshot = list(range(5)), list(range(10, 15)), list(range(20, 25))

    def serve(chain: list[int], lengths: list[int]) -> None:
        assert pool.begin("one", chain, 320, rows=not lengths)
        pool.end("one", chain, 320, lengths, rows=not lengths)

    serve(old, [320])
    serve(rows, [])
    serve(snapshot, [320])
    if refreshed:
        serve(rows, [])
    assert pool.begin("big", [], 5 * 64)
    pool.validate()
    assert pool.usable(old, 320) == 0, "it was the oldest"
    assert pool.pin("held", rows, 321) == 320
    pool.drop("held")
    pool.drop("big")
    assert pool.begin("bigger", [], 12 * 64)
    pool.validate()
    assert pool.pin("held", rows, 321) == (320 if refreshed else 0)
    assert pool.usable(snapshot, 320) == (0 if refreshed else 320)
