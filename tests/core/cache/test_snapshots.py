"""Where snapshots are taken, and that no path takes the pool from the others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec

SPEC = PoolSpec(16, 3)


def test_the_end_of_turn_and_prompt_and_the_branch() -> None:
    wanted, spare = Placement(chunk_tokens=1024).lengths(SPEC, Grant(640, 1000, 0), prompt=3000, total=3300)
    assert wanted == [3264, 2944, 960]
    assert spare == [2048, 1024]


def test_the_end_of_a_short_prompt_is_spare_but_not_where_prompts_part() -> None:
    heavy = PoolSpec(512, 21)
    assert Placement().lengths(heavy, Grant(0, 512, 0), prompt=2100, total=2500) == ([512], [2048])
    assert Placement().lengths(heavy, Grant(0, 512, 0), prompt=2600, total=2600) == ([2560, 512], [])


def test_the_same_prompt_again_finds_its_snapshot() -> None:
    pool = PrefixPool(SPEC, 1000)
    chain = list(range(64))
    grant = pool.begin("first", chain, 1024)
    assert grant is not None
    wanted, spare = Placement().lengths(SPEC, grant, 1024, 1024)
    assert wanted == [1024, 960]
    pool.end("first", chain, 1024, wanted, spare)
    assert pool.usable(chain, 1024 - 1) == 960  # the last token is always computed
    assert pool.usable([*chain, 99], 1040) == 1024


@given(
    cached=st.integers(0, 100).map(lambda n: n * 64),
    more=st.integers(1, 500_000),
    answer=st.integers(0, 5000),
    budget=st.integers(0, 6),
)
def test_lengths_are_allowed_and_within_the_budget(cached: int, more: int, answer: int, budget: int) -> None:
    prompt = cached + more
    grant = Grant(cached, cached + more // 2, 0)
    wanted, spare = Placement(4096, budget).lengths(SPEC, grant, prompt, prompt + answer)
    assert len(wanted) == len(set(wanted)) <= 3
    assert len(spare) <= budget
    assert not set(wanted) & set(spare)
    for length in wanted + spare:
        assert length % SPEC.snapshot_tokens == 0
        assert cached < length <= prompt + answer


def converse(pool: PrefixPool, name: str, chain: list[int]) -> int:
    """One turn; tokens that hit."""
    tokens = len(chain) * SPEC.block_tokens
    grant = pool.begin(name, chain, tokens)
    assert grant is not None
    pool.end(name, chain, tokens, *Placement(256).lengths(SPEC, grant, tokens, tokens))
    pool.validate()
    return grant.cached_tokens


def test_one_long_path_leaves_the_others_their_snapshots() -> None:
    pool = PrefixPool(SPEC, 300)
    others = [list(range(1000 * n, 1000 * n + 8)) for n in range(1, 9)]
    for chain in others:
        converse(pool, "other", chain)
    long = list(range(8))
    for turn in range(20):  # 168 blocks and 21 snapshots of 3 would not fit beside the others' 8 * 11
        assert converse(pool, "long", long) == 128 * turn
        long += range(8 * (turn + 1), 8 * (turn + 2))
    for chain in others:
        assert pool.usable(chain, 128) == 128


def test_a_place_where_paths_part_stays() -> None:
    pool = PrefixPool(SPEC, 120)
    system = list(range(4))
    converse(pool, "first", [*system, 10, 11, 12, 13])
    converse(pool, "second", [*system, 20, 21, 22, 23])
    assert pool.snapshots(system, 64) == [64]  # taken where the second left the first
    for turn in range(30):
        assert converse(pool, "new", system + list(range(100 * turn + 100, 100 * turn + 108))) == 64


def test_a_superseded_snapshot_that_is_used_again_is_as_good_as_any() -> None:
    pool = PrefixPool(PoolSpec(64, 1), 10)

    def serve(chain: list[int]) -> None:
        assert pool.begin("", chain, len(chain) * 64)
        pool.end("", chain, len(chain) * 64, [len(chain) * 64])

    serve([1])
    serve([1, 2])  # [1] is cold now
    assert pool.snapshots([1, 2], 128) == [64, 128]
    assert pool.begin("again", [1], 64)  # warm again, and younger than [1, 2]
    pool.drop("again")
    serve([7, 8, 9, 10, 11, 12])
    assert pool.snapshots([1, 2], 128) == [64]


def test_spare_snapshots_take_no_room_from_others() -> None:
    pool = PrefixPool(PoolSpec(64, 2), 14)
    for chain in ([1, 2], [3, 4]):
        assert pool.begin("", chain, 128)
        pool.end("", chain, 128, [128])
    assert pool.begin("", [5, 6], 128)
    kept = pool.end("", [5, 6], 128, [128], [64])
    assert [length for length, _ in kept.states] == [128, 64]  # what was free
    assert pool.begin("", [7, 8], 128)
    kept = pool.end("", [7, 8], 128, [128], [64])
    assert pool.usable([5, 6], 128) == pool.usable([7, 8], 128) == 128
    assert pool.snapshots([5, 6], 128) == [128]  # the spare one went first


@given(
    capacity=st.integers(7, 40),
    size=st.integers(1, 3),
    spare=st.lists(st.integers(1, 4), max_size=4, unique=True),
    before=st.lists(st.integers(1, 4), max_size=4, unique=True),
)
def test_what_is_said_to_be_kept_is_there_and_the_more_wanted_spare_ones_are(
    capacity: int, size: int, spare: list[int], before: list[int]
) -> None:
    pool = PrefixPool(PoolSpec(64, size), capacity)
    for chain, lengths in ((list(range(10, 14)), before), (list(range(4)), spare)):
        if pool.begin("one", chain, 256) is None:
            return
        kept = pool.end("one", chain, 256, [256], [64 * length for length in lengths])
        there = pool.snapshots(chain, 256)
        assert [length for length, _ in kept.states if length not in there] == []
        numbers = [number for _, some in kept.states for number in some]
        assert len(numbers) == len(set(numbers))
        wanted = [64 * length for length in lengths if length != 4]
        assert [length in there for length in wanted] == sorted((length in there for length in wanted), reverse=True)
        pool.validate()
