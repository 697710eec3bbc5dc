"""Sequences side by side on one engine and its KV memory, left at any moment: no wrong bytes, and nothing stays."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from prfaas.cluster.enginemap import EngineMap
from prfaas.core.cache.snapshots import Placement
from prfaas.core.ids import ClusterName, Epoch, NodeName
from prfaas.core.index.changes import apply
from prfaas.core.index.index import PrefixIndex
from prfaas.core.index.places import Place
from prfaas.engine.base import Limits
from prfaas.engine.emulated.engine import EmulatedEngine
from prfaas.engine.node.prefixes import Prefixes
from prfaas.engine.node.room import Room
from prfaas.engine.node.telling import Telling
from prfaas.engine.reuse import spec_of
from prfaas.model.blockhash import CacheKey, block_hashes
from prfaas.model.bytemodel import VOCAB
from prfaas.testing.gather import Clipped, Gatherer
from prfaas.wire.kvevents import KVEvent, KVEvents, decode, encode
from tests.emulated.conftest import engine, greedy, ids

WORDS = st.lists(st.integers(0, 2), min_size=1, max_size=6)
"""A prompt is a word of letters, each so many tokens alike: so prompts share prefixes."""
LETTER = 50
PLACE = Place(ClusterName("c"), NodeName("n"))
ROOT = CacheKey("model").root()


def prompt(word: list[int], more: int) -> list[int]:
    return [65 + letter for letter in word for _ in range(LETTER)] + [90] * more


class Node(RuleBasedStateMachine):
    """An emulated engine checks what it resumes from against the tokens, so a wrong prefix is an error here."""

    @initialize(
        layout=st.sampled_from(["hybrid", "dense", "window"]),
        blocks=st.integers(32, 64),  # what the longest needs, and more
        block_tokens=st.sampled_from([16, 48, 64, 128]),
        copies=st.booleans(),
        spare=st.integers(0, 3),
    )
    def start(self, layout: str, blocks: int, block_tokens: int, copies: bool, spare: int) -> None:
        self.loop = asyncio.new_event_loop()
        limits = Limits(4096, 4, VOCAB, block_tokens, blocks)
        self.engine: EmulatedEngine = engine(layout, limits=limits, bytes_scale=1 / 1024, chunk_tokens=100)
        spec = spec_of(self.engine.layout, block_tokens)
        assert spec is not None
        placement = Placement(chunk_tokens=64, spare=spare)
        self.snapshot_blocks = spec.snapshot_blocks
        capacity = blocks + 4 * spec.snapshot_blocks
        self.index, self.map = PrefixIndex(), EngineMap(PLACE, lambda salt, adapter: ROOT, canonical=True)
        self.index.open(PLACE, Epoch(1))
        self.telling = Telling(ROOT, self.told)
        self.prefixes = Prefixes(spec, block_tokens, capacity, copies=copies, placement=placement, telling=self.telling)
        self.room = Room(self.prefixes, blocks, 4, 100)
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.number = self.landed = self.held = 0
        self.words: list[list[int]] = [[0], [0, 1, 2], [1, 1, 1, 1, 1]]

    @rule(word=WORDS, more=st.integers(1, 70), count=st.integers(1, 90), steps=st.integers(0, 200))
    def answer(self, word: list[int], more: int, count: int, steps: int) -> None:
        self.words.append(word)
        self.spawn(self.answered(prompt(word, more), count), steps)

    @rule(word=WORDS, more=st.integers(1, 70), steps=st.integers(0, 200), held=st.integers(0, 50))
    def prefill(self, word: list[int], more: int, steps: int, held: int) -> None:
        self.words.append(word)
        self.spawn(self.prefilled(prompt(word, more), held), steps)

    @rule(word=WORDS, more=st.integers(1, 70), count=st.integers(1, 90), steps=st.integers(0, 200))
    def land(self, word: list[int], more: int, count: int, steps: int) -> None:
        self.words.append(word)
        self.spawn(self.answered(prompt(word, more), count, landed=True), steps)

    @rule(steps=st.integers(1, 400))
    def go_on(self, steps: int) -> None:
        self.run(steps)

    @rule(which=st.integers(0, 50))
    def leave(self, which: int) -> None:
        # No precondition: how far tasks are depends on threads, and what is drawn must not.
        if self.tasks:
            self.tasks[sorted(self.tasks)[which % len(self.tasks)]].cancel()
        self.run(5)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "room"):
            self.room.validate()

    @invariant()
    def what_is_told_is_what_is_kept(self) -> None:
        """Up to a block's end: where blocks are no multiple of 64 tokens two may part behind a canonical one."""
        if not hasattr(self, "room"):
            return
        late = PrefixIndex()
        late.open(PLACE, Epoch(1))
        for change in EngineMap(PLACE, lambda salt, adapter: ROOT, canonical=True).changes(self.telling.snapshot()):
            apply(late, change)
        size = self.engine.limits.block_tokens
        for word in self.words[-8:]:
            tokens = prompt(word, 70)
            kept = self.prefixes._pool.usable(self.prefixes._chains.of(tokens, len(tokens) - 1), len(tokens) - 1)
            (told, again) = (
                one.usable(block_hashes(tokens[:-1], ROOT)).in_cluster(PLACE.cluster) for one in (self.index, late)
            )
            assert told == again
            assert kept - kept % 64 <= told <= (kept if size in (16, 64) else kept + size)
        self.index.validate()

    def told(self, *events: KVEvent) -> None:
        (back,) = [decode(encode("n", KVEvents(0, 0.0, events)))]
        for change in self.map.changes(back.events):
            apply(self.index, change)

    def spawn(self, work: Any, steps: int) -> None:
        self.number += 1
        name = f"t{self.number}"
        self.tasks[name] = self.loop.create_task(work)
        self.run(steps)

    def run(self, steps: int) -> None:
        async def some() -> None:
            for _ in range(steps):
                await asyncio.sleep(0)

        self.loop.run_until_complete(some())
        for name, task in [*self.tasks.items()]:
            if task.done():
                del self.tasks[name]
                if not task.cancelled():
                    task.result()

    async def answered(self, tokens: list[int], count: int, landed: bool = False) -> None:
        owner = f"a{id(tokens)}"
        kv, held = None, 0
        try:
            if landed:
                held = self.room.hold(owner, tokens)
                assert held < len(tokens) - 1
                sink = Gatherer(self.engine.layout, len(tokens) - 1, held)
                await self.engine.prefill(tokens[:-1], Clipped(sink))
                assert sink.coverage.complete
                kv = sink.landed
            reuse = await self.room.enter(owner, self.prefixes.want(len(tokens) + count, 1, tokens, landed=landed))
            assert reuse.tokens == held or not landed
            made = []
            answer = self.engine.generate(tokens, greedy(count), kv, reuse)
            try:
                async for token in answer:
                    made.append(token)
                    if landed:
                        reuse.copied()
            finally:
                await answer.aclose()
        finally:
            self.room.leave(owner)
        self.landed += landed
        self.held += held > 0
        plain = [token async for token in self.engine.generate(tokens, greedy(count), None)]
        assert ids(made) == ids(plain)

    async def prefilled(self, tokens: list[int], held: int) -> None:
        owner = f"p{id(tokens)}"
        length = len(tokens) - 1
        reuse = await self.room.enter(owner, self.prefixes.want(length, 1, tokens))
        try:
            sink = Gatherer(self.engine.layout, length)
            try:
                await self.engine.prefill(tokens[:-1], sink, reuse)
            finally:
                self.room.leave_slot(owner)
            assert sink.coverage.complete
            for _ in range(held):
                await asyncio.sleep(0)
        finally:
            self.room.leave(owner)

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        for number, task in enumerate(self.tasks.values()):
            if number % 2:
                task.cancel()
        if self.tasks:
            self.loop.run_until_complete(asyncio.wait(self.tasks.values()))
        self.run(0)
        assert (self.room.blocks_in_use, self.room.waiting, self.engine.running) == (0, 0, 0)
        assert self.prefixes.holds == 0
        self.room.validate()
        blocks = self.prefixes.capacity_blocks - self.snapshot_blocks
        assert self.prefixes.begin("all", self.prefixes.want(blocks * self.engine.limits.block_tokens)) is not None
        assert self.prefixes.prefix_blocks == 0
        self.prefixes.end("all")
        assert self.prefixes.working_blocks == 0
        self.room.validate()
        self.loop.run_until_complete(self.engine.close())
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()


TestNode = pytest.mark.slow(Node.TestCase)
TestNode.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


@pytest.mark.nightly
class TestNodeLonger(Node.TestCase):  # type: ignore[misc]
    settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
