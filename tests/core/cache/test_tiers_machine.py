"""Two tiers, requests side by side, moves that end in any order, late or not at all: every block is in one state, and
what is a hit holds the right bytes."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.core.cache.chains import SPECS, WORDS, Chains

from prfaas.core.cache.grants import Grant, Kept
from prfaas.core.cache.moves import Move, Settled
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.tiers import TieredPool
from prfaas.core.errors import LocalError

STOPS = st.lists(st.integers(1, 7), max_size=3)
Bytes = tuple[str, tuple[int, ...]]


class Tiers(RuleBasedStateMachine):
    """`near` and `far`: what was written into each block of either tier. A move copies one to the other when it ends,
    one that fails leaves rubbish."""

    @initialize(
        spec=st.sampled_from(SPECS),
        capacity=st.integers(3, 30),
        host=st.integers(0, 40),
        supersede=st.booleans(),
    )
    def start(self, spec: PoolSpec, capacity: int, host: int, supersede: bool) -> None:
        self.pool = TieredPool(spec, capacity, host, supersede=supersede)
        self.chains = Chains()
        self.near: dict[int, Bytes] = {}
        self.far: dict[int, Bytes] = {}
        self.moves: dict[int, Move] = {}
        self.asked: dict[int, tuple[list[int], int, Grant]] = {}
        self.working: dict[int, tuple[list[int], int]] = {}
        self.shipped: dict[int, tuple[int, list[int]]] = {}
        self.words: dict[tuple[int, ...], None] = {}
        self.number = 0
        self.now = 0

    @rule(word=WORDS, more=st.integers(0, 200), snapshots=st.integers(0, 3), fetch=st.booleans())
    def begin(self, word: list[int], more: int, snapshots: int, fetch: bool = True) -> None:
        size = self.pool.spec.block_tokens
        chain, tokens = self.chains.of(word), len(word) * size + more
        usable = self.pool.usable(chain, tokens) if fetch else self.pool.near.usable(chain, tokens)
        busy = self.asked or self.working or self.shipped or self.moves
        grant = self.pool.begin(self.number, chain, tokens, snapshots=snapshots, fetch=fetch)
        self.take()
        if grant is None:
            assert not fetch or usable == self.pool.usable(chain, tokens)
            assert busy or not self.pool.near.can_ever(tokens)
            return
        assert grant.cached_tokens <= usable <= grant.shared_tokens <= tokens
        least = -(-tokens // size) + 3 * self.pool.spec.snapshot_blocks
        assert grant.cached_tokens == usable or least > self.pool.near.capacity_blocks
        self.asked[self.number] = (chain, tokens, grant)
        if self.pool.ready(self.number):
            self.work(self.number)
        else:
            with pytest.raises(LocalError, match="not at work"):
                self.pool.end(self.number, chain, tokens)
        self.number += 1

    @rule(word=WORDS, late=st.booleans(), done=st.sampled_from([True, True, False]))
    def serve(self, word: list[int], late: bool, done: bool) -> None:
        """A whole request, at whose end it can be resumed."""
        request = self.number
        self.begin(word, 0, 1)
        if request not in self.working and not late:
            for number in sorted(self.moves):
                self.over(number, done)
        if request in self.working:
            chain, tokens = self.working.pop(request)
            length = tokens - tokens % self.pool.spec.snapshot_tokens
            self.fill(chain, self.pool.end(request, chain, tokens, [length]))
            self.words[tuple(word)] = None

    @precondition(lambda self: any(self.pool.fetched(self.chains.of(list(word)), 1 << 20) for word in self.words))
    @rule(data=st.data(), more=st.integers(0, 200))
    def resume(self, data: st.DataObject, more: int) -> None:
        """One that the host can resume."""
        words = [word for word in self.words if self.pool.fetched(self.chains.of(list(word)), 1 << 20)]
        self.begin(list(data.draw(st.sampled_from(words))), more, 1)

    def work(self, request: int) -> None:
        """It may work: what it resumes from can be read, and it writes all over its own."""
        chain, tokens, grant = self.asked.pop(request)
        cached = grant.cached_tokens // self.pool.spec.block_tokens
        held = self.pool.held(request)
        assert len(held.prefix) == cached
        for end, block in enumerate(held.prefix, 1):
            assert self.near[block] == ("tokens", tuple(chain[:end]))
        for block in held.state:
            assert self.near[block] == ("state", tuple(chain[:cached]))
        assert len(held.state) == (self.pool.spec.snapshot_blocks if cached else 0)
        for end, block in enumerate(held.own, cached + 1):
            self.near[block] = ("tokens", tuple(chain[:end]) if end <= len(chain) else (-1, request))
        self.working[request] = (chain, tokens)

    def take(self) -> None:
        for move in self.pool.take_moves():
            assert move.number not in self.moves
            self.moves[move.number] = move

    @precondition(lambda self: self.moves)
    @rule(data=st.data(), done=st.sampled_from([True, True, True, False]))
    def settle(self, data: st.DataObject, done: bool) -> None:
        self.over(data.draw(st.sampled_from(sorted(self.moves))), done)

    def over(self, number: int, done: bool) -> None:
        move = self.moves.pop(number)
        source, target = (self.near, self.far) if move.to_host else (self.far, self.near)
        pairs = list(zip(move.near, move.far, strict=True))
        for near, far in pairs:
            read, written = (near, far) if move.to_host else (far, near)
            target[written] = source[read] if done else ("rubbish", ())
        settled: Settled = self.pool.moved(number) if done else self.pool.failed(number)
        self.take()
        with pytest.raises(LocalError, match="no move"):
            self.pool.moved(number)
        for request in settled.ready:
            assert isinstance(request, int)
            self.work(request)
        for request in settled.over:
            assert isinstance(request, int)
            chain, _, grant = self.asked.pop(request)
            assert not done
            cached = grant.cached_tokens
            if not self.pool._fetches:  # nobody else is still to be told
                assert self.pool.near.usable(chain, cached) == cached or self.pool.usable(chain, cached) < cached

    @precondition(lambda self: self.working)
    @rule(data=st.data(), stops=STOPS, spare=STOPS)
    def end(self, data: st.DataObject, stops: list[int], spare: list[int]) -> None:
        request, chain, tokens = self.pick(data)
        self.fill(chain, self.pool.end(request, chain, tokens, self.lengths(stops), self.lengths(spare)))
        self.working.pop(request)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), stops=STOPS, spare=STOPS)
    def progress(self, data: st.DataObject, stops: list[int], spare: list[int]) -> None:
        request, chain, tokens = self.pick(data)
        self.fill(chain, self.pool.progress(request, chain, tokens, self.lengths(stops), self.lengths(spare)))

    @precondition(lambda self: self.working)
    @rule(data=st.data(), stops=STOPS, spare=STOPS, lease=st.integers(0, 5))
    def ship(self, data: st.DataObject, stops: list[int], spare: list[int], lease: int) -> None:
        request, chain, tokens = self.pick(data)
        lengths, cold = self.lengths(stops), self.lengths(spare)
        self.fill(chain, self.pool.ship(request, chain, tokens, self.now + lease, lengths, cold))
        self.working.pop(request)
        own = self.pool.held(request).own
        for block in own:
            self.near[block] = ("transfer", (request,))
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

    @precondition(lambda self: self.working or self.asked)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(sorted([*self.working, *self.asked])))
        self.pool.drop(request)
        self.working.pop(request, None)
        self.asked.pop(request, None)

    def lengths(self, stops: list[int]) -> list[int]:
        return [stop * self.pool.spec.snapshot_tokens for stop in stops]

    def pick(self, data: st.DataObject) -> tuple[int, list[int], int]:
        request = data.draw(st.sampled_from(sorted(self.working)))
        return request, *self.working[request]

    def fill(self, chain: list[int], kept: Kept) -> None:
        """Bytes are written at once: into no block that a move reads."""
        self.take()
        read = {block for move in self.moves.values() if move.to_host for block in move.near}
        end = kept.tokens // self.pool.spec.block_tokens
        for stop, block in enumerate(kept.blocks, end - len(kept.blocks) + 1):
            assert self.near[block] == ("tokens", tuple(chain[:stop]))
        for length, blocks in kept.states:
            assert length <= kept.tokens
            assert read.isdisjoint(blocks)
            for block in blocks:
                self.near[block] = ("state", tuple(chain[: length // self.pool.spec.block_tokens]))

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "pool"):
            self.pool.validate()
            assert self.pool.moving >= len(self.moves)

    @invariant()
    def what_works_or_moves_is_left_alone(self) -> None:
        if not hasattr(self, "pool"):
            return
        for request, (_, own) in self.shipped.items():
            assert self.pool.held(request).own == own
            assert all(self.near[block] == ("transfer", (request,)) for block in own)
        assert {request for request in self.asked if self.pool.ready(request)} == set()
        assert all(self.pool.ready(request) for request in self.working)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        for request in [*self.working, *self.asked, *self.shipped]:
            self.pool.drop(request)
        self.asked.clear()
        self.settle_all()
        near, host, spec = self.pool.near, self.pool.host, self.pool.spec
        assert near.working_blocks == self.pool.moving == 0
        assert near.room_blocks == near.capacity_blocks
        assert host is None or (host.working_blocks, host.room_blocks) == (0, host.capacity_blocks)
        tokens = (near.capacity_blocks - spec.snapshot_blocks) * spec.block_tokens
        if tokens >= 0:
            assert self.pool.begin("all", [], tokens)
            self.settle_all()
            assert near.prefix_blocks == 0
            self.pool.drop("all")
            assert near.used_blocks == 0
        self.pool.validate()

    def settle_all(self) -> None:
        self.take()
        while self.moves:
            number = min(self.moves)
            self.moves.pop(number)
            self.pool.moved(number)
            self.take()


TestTiers = Tiers.TestCase
TestTiers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestTiersLonger(Tiers.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
