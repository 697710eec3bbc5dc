"""Requests side by side, in any order: every block is in one state, and what is a hit holds the right tokens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.cache.chains import SPECS, WORDS, Chains

from prfaas.core.cache.grants import Kept
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec

STOPS = st.lists(st.integers(1, 7), max_size=3)


class Pools(RuleBasedStateMachine):
    """`memory`: what was written into each block. A block of tokens holds the whole chain up to it, a state
    likewise."""

    @initialize(spec=st.sampled_from(SPECS), capacity=st.integers(3, 40), supersede=st.booleans())
    def start(self, spec: PoolSpec, capacity: int, supersede: bool) -> None:
        self.pool = PrefixPool(spec, capacity, supersede=supersede)
        self.chains = Chains()
        self.memory: dict[int, tuple[str, tuple[int, ...]]] = {}
        self.working: dict[int, tuple[list[int], int]] = {}
        self.pinned: dict[int, list[tuple[int, tuple[int, ...]]]] = {}
        self.shipped: dict[int, tuple[int, list[int]]] = {}
        self.number = 0
        self.now = 0

    @rule(word=WORDS, more=st.integers(0, 200))
    def begin(self, word: list[int], more: int) -> None:
        size = self.pool.spec.block_tokens
        chain, tokens = self.chains.of(word), len(word) * size + more
        usable = self.pool.usable(chain, tokens)
        before = (self.pool.used_blocks, self.pool.room_blocks, self.pool.evicted_blocks)
        grant = self.pool.begin(self.number, chain, tokens)
        if grant is None:
            assert before == (self.pool.used_blocks, self.pool.room_blocks, self.pool.evicted_blocks)
            assert usable == self.pool.usable(chain, tokens)
            assert self.working or self.shipped or self.pinned or not self.pool.can_ever(tokens)
            return
        assert grant.cached_tokens <= usable <= grant.shared_tokens <= tokens
        least = -(-tokens // size) + 2 * self.pool.spec.snapshot_blocks
        assert grant.cached_tokens == usable or least > self.pool.capacity_blocks
        held = self.pool.held(self.number)
        cached = grant.cached_tokens // size
        assert len(held.prefix) == cached
        assert len(held.own) == grant.blocks == -(-tokens // size) - cached + self.pool.spec.snapshot_blocks
        for end, block in enumerate(held.prefix, 1):
            assert self.memory[block] == ("tokens", tuple(chain[:end]))
        for block in held.state:
            assert self.memory[block] == ("state", tuple(chain[:cached]))
        assert len(held.state) == (self.pool.spec.snapshot_blocks if cached else 0)
        for end, block in enumerate(held.own, cached + 1):
            self.memory[block] = ("tokens", tuple(chain[:end]) if end <= len(chain) else (-1, self.number))
        self.working[self.number] = (chain, tokens)
        self.number += 1

    @rule(word=WORDS, more=st.integers(0, 200))
    def begin_with_rows(self, word: list[int], more: int) -> None:
        """The state comes from elsewhere."""
        size, spec = self.pool.spec.block_tokens, self.pool.spec
        chain, tokens = self.chains.of(word), len(word) * size + more
        usable = self.pool.usable(chain, tokens)
        grant = self.pool.begin(self.number, chain, tokens, rows=True)
        if grant is None:
            assert self.working or self.shipped or self.pinned or not self.pool.can_ever(tokens)
            return
        least = -(-tokens // size) + 2 * spec.snapshot_blocks
        assert grant.cached_tokens == grant.shared_tokens or least > self.pool.capacity_blocks
        assert grant.cached_tokens >= usable or least > self.pool.capacity_blocks
        held, cached = self.pool.held(self.number), grant.cached_tokens // size
        for end, block in enumerate(held.prefix, 1):
            assert self.memory[block] == ("tokens", tuple(chain[:end]))
        for end, block in enumerate(held.own, cached + 1):
            self.memory[block] = ("tokens", tuple(chain[:end]) if end <= len(chain) else (-1, self.number))
        self.working[self.number] = (chain, tokens)
        self.number += 1

    @rule(word=WORDS, more=st.integers(1, 200))
    def pin(self, word: list[int], more: int) -> None:
        size, spec = self.pool.spec.block_tokens, self.pool.spec
        chain, tokens = self.chains.of(word), len(word) * size + more
        usable = self.pool.usable(chain, tokens - 1)
        held = self.pool.pin(self.number, chain, tokens)
        assert held < tokens
        assert held >= usable
        there = self.pool.held(self.number)
        assert not there.own
        assert len(there.prefix) == held // size
        if held > usable:
            assert held <= tokens - spec.window_tokens
        elif spec.stateful and held:
            assert len(there.state) == spec.snapshot_blocks
        for end, block in enumerate(there.prefix, 1):
            assert self.memory[block] == ("tokens", tuple(chain[:end]))
        self.pinned[self.number] = [(block, tuple(chain[:end])) for end, block in enumerate(there.prefix, 1)]
        self.number += 1

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def let_go(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.pinned)))
        del self.pinned[request]
        self.pool.drop(request)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), stops=STOPS, spare=STOPS, rows=st.booleans())
    def end(self, data: st.DataObject, stops: list[int], spare: list[int], rows: bool) -> None:
        request, chain, tokens = self.pick(data)
        self.fill(chain, self.pool.end(request, chain, tokens, self.lengths(stops), self.lengths(spare), rows=rows))
        if rows:
            full = min(len(chain), tokens // self.pool.spec.block_tokens)
            again = self.pool.pin(self.number, chain, tokens + 1 + self.pool.spec.window_tokens)
            assert again == full * self.pool.spec.block_tokens
            self.pool.drop(self.number)
            self.number += 1

    @precondition(lambda self: self.working)
    @rule(data=st.data(), stops=STOPS, spare=STOPS, lease=st.integers(0, 5))
    def ship(self, data: st.DataObject, stops: list[int], spare: list[int], lease: int) -> None:
        request, chain, tokens = self.pick(data)
        lengths, cold = self.lengths(stops), self.lengths(spare)
        self.fill(chain, self.pool.ship(request, chain, tokens, self.now + lease, lengths, cold))
        own = self.pool.held(request).own
        for block in own:
            self.memory[block] = ("transfer", (request,))
        self.shipped[request] = (self.now + lease, own)

    @precondition(lambda self: self.shipped)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted(self.shipped)))
        del self.shipped[request]
        assert self.pool.acknowledge(request)
        assert not self.pool.acknowledge(request)

    @rule(step=st.integers(0, 5))
    def expire(self, step: int) -> None:
        self.now += step
        due = {request for request, (lease, _) in self.shipped.items() if lease <= self.now}
        assert set(self.pool.expire(self.now)) == due
        for request in due:
            del self.shipped[request]

    @precondition(lambda self: self.working)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self.pool.drop(self.pick(data)[0])

    @rule(word=WORDS, stops=STOPS)
    def insert(self, word: list[int], stops: list[int]) -> None:
        chain = self.chains.of(word)
        tokens = len(chain) * self.pool.spec.block_tokens
        self.fill(chain, self.pool.insert(chain, tokens, self.lengths(stops)))

    def lengths(self, stops: list[int]) -> list[int]:
        return [stop * self.pool.spec.snapshot_tokens for stop in stops]

    def pick(self, data: st.DataObject) -> tuple[int, list[int], int]:
        request = data.draw(st.sampled_from(sorted(self.working)))
        return request, *self.working.pop(request)

    def fill(self, chain: list[int], kept: Kept) -> None:
        end = kept.tokens // self.pool.spec.block_tokens
        for stop, block in enumerate(kept.blocks, end - len(kept.blocks) + 1):
            self.memory[block] = ("tokens", tuple(chain[:stop]))
        for length, blocks in kept.states:
            assert length <= kept.tokens
            for block in blocks:
                self.memory[block] = ("state", tuple(chain[: length // self.pool.spec.block_tokens]))

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.validate()

    @invariant()
    def pinned_blocks_are_left_alone(self) -> None:
        for blocks in getattr(self, "pinned", {}).values():
            assert all(self.memory[block] == ("tokens", prefix) for block, prefix in blocks)

    @invariant()
    def transfer_blocks_are_left_alone(self) -> None:
        for request, (_, own) in getattr(self, "shipped", {}).items():
            assert self.pool.held(request).own == own
            assert all(self.memory[block] == ("transfer", (request,)) for block in own)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for request in [*self.working, *self.shipped, *self.pinned]:
            self.pool.drop(request)
        assert self.pool.working_blocks == 0
        assert self.pool.room_blocks == self.pool.capacity_blocks
        tokens = (self.pool.capacity_blocks - self.pool.spec.snapshot_blocks) * self.pool.spec.block_tokens
        if tokens >= 0:
            assert self.pool.begin("all", [], tokens)
            assert self.pool.prefix_blocks == 0
            self.pool.drop("all")
            assert self.pool.used_blocks == 0
        self.pool.validate()


TestPools = Pools.TestCase
TestPools.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


@pytest.mark.slow
class TestPoolsLonger(Pools.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
