"""An engine that a test holds in its hand: it computes in no time, and waits or fails where the test says.

Its KV and tokens are those of `engine.emulated.derive`, and wrong or incomplete KV is an error here, not another
answer. It knows `engine.base` and nothing of any transport, of time or of batches, which are what the emulated engine
is for. Its cache has all kinds of parts: rows of every token, rows of a window, and a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.errors import InvariantError
from prfaas.core.transfer.extent import Extent, needed
from prfaas.engine.base import NO_TOKEN, KVSink, Limits, Logprobs, Sampling, Token
from prfaas.engine.emulated import kept
from prfaas.engine.emulated.derive import Chain, Letters, deviations, kv
from prfaas.engine.landed import check
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.transport.base import LandedKV

PARTS = (
    Part(0, "k", PartKind.TOKENS, (2, 8), "uint8"),
    Part(0, "v", PartKind.TOKENS, (2, 4), "uint8"),
    Part(1, "k", PartKind.WINDOW, (1, 8), "uint8", window=10),
    Part(2, "state", PartKind.STATE, (4, 16), "uint8"),
)
LETTERS = Letters(tuple(range(0x20, 0x7F)), ends=0x20)
"""Printable ones, and no end mark: an answer ends where its test says."""


class WrongKV(Exception):
    """What landed is not the KV of the prompt."""


async def _go_on(_step: int) -> None:
    """No wait."""


class DerivedEngine:
    """`answer`: the ids of every answer, before an end mark; None derives printable ids from all tokens so far.

    `before_chunk(start)`, `before_token(index)` and `before_adopt(length)` are awaited before a prefill chunk, before
    each token and before a prefix that came is kept: a test may wait or raise there. `seen` counts what was called,
    `computed` tokens of prompts that no prefix held, `adopted` prefixes that came.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        chunk_tokens: int = 16,
        answer: Sequence[int] | None = None,
        end: int = 257,
        revision: str = "derived-1",
    ) -> None:
        self.layout = KVLayout(revision, PARTS)
        self.limits = limits
        self.answer, self.end = answer, end
        self.before_chunk: Callable[[int], Awaitable[None]] = _go_on
        self.before_token: Callable[[int], Awaitable[None]] = _go_on
        self.before_adopt: Callable[[int], Awaitable[None]] = _go_on
        self.before_start: Callable[[int], Awaitable[None]] = _go_on
        self.seen = {"prefill": 0, "landed": 0, "alone": 0}
        self.computed = self.adopted = 0
        self.running = 0
        self._chunk_tokens = chunk_tokens
        self._spec = spec_of(self.layout, limits.block_tokens)

    async def start(self) -> None:
        """Ready at once, unless `before_start` waits."""
        await self.before_start(0)

    async def close(self) -> None:
        """Nothing to free."""

    async def prefill(self, tokens: Sequence[int], sink: KVSink, reuse: Reuse | None = None) -> None:
        """Rows chunk by chunk, layer by layer, the state at the end. What a prefix holds goes likewise, at once."""
        self.seen["prefill"] += 1
        self.running += 1
        reuse, chain, done = reuse or Reuse(keeps=False), Chain(tokens), 0
        try:
            kept.check(reuse, chain, self._spec)
            wanted = {(e.layer, e.part): e for e in needed(self.layout, len(tokens))}
            for start in range(0, len(tokens), self._chunk_tokens):
                stop = min(start + self._chunk_tokens, len(tokens))
                if stop > reuse.tokens:
                    await self.before_chunk(start)
                    await asyncio.sleep(0)
                    self.computed += stop - max(start, reuse.tokens)
                for part in self.layout.parts:
                    if part.kind is PartKind.STATE:
                        if stop == len(tokens):
                            sink.put(wanted[part.layer, part.name], memoryview(kv(part, chain, 0, stop, stop)))
                        continue
                    first = max(start, wanted[part.layer, part.name].start)
                    if first < stop:
                        extent = Extent(part.layer, part.name, first, stop, (0, part.shape[0]))
                        sink.put(extent, memoryview(kv(part, chain, first, stop, len(tokens))))
                done = stop
        finally:
            self.running -= 1
            kept.leave(reuse, chain, self._spec, max(done, reuse.tokens))

    async def adopt(self, tokens: Sequence[int], landed: LandedKV, reuse: Reuse) -> None:
        """Raises WrongKV unless `landed` is exactly the KV of these tokens."""
        self.adopted += 1
        await self.before_adopt(len(tokens))
        chain = Chain(tokens)
        kept.check(reuse, chain, self._spec)
        if landed.length != len(tokens) or any(deviations(self.layout, chain, landed)):
            raise WrongKV(f"not the KV of these {len(tokens)} tokens")
        kept.adopt(reuse, chain, self._spec)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, landed: LandedKV | None, reuse: Reuse | None = None
    ) -> AsyncGenerator[Token, None]:
        """Raises WrongKV unless `landed` is exactly the KV of all tokens but the last, less what `reuse` holds."""
        self.seen["alone" if landed is None else "landed"] += 1
        self.running += 1
        reuse, chain, made, right = reuse or Reuse(keeps=False), Chain(tokens), 0, False
        try:
            kept.check(reuse, chain, self._spec, landed=landed is not None)
            if landed is not None:
                self._check(chain, landed, reuse)
            else:
                self.computed += len(tokens) - 1 - reuse.tokens
            right = True
            prompt = _prompt_logprobs(chain, tokens, sampling.prompt_logprobs)
            while True:
                await self.before_token(made)
                await asyncio.sleep(0)
                if sampling.max_tokens == 0:
                    yield Token(NO_TOKEN, "length", prompt=prompt)
                    return
                token = self._next(chain, made, sampling)
                likely = _likely(chain, chain.length, token, sampling.logprobs)
                chain.append(token)
                made += 1
                stopped = token in sampling.stop_ids
                finish = "stop" if stopped else "length" if made == sampling.max_tokens else None
                yield Token(token, finish, likely, prompt)
                if finish is not None:
                    return
                prompt = ()
        finally:
            self.running -= 1
            if right:
                kept.leave(reuse, chain, self._spec, chain.length - 1)

    def _next(self, chain: Chain, made: int, sampling: Sampling) -> int:
        if self.answer is not None:
            return self.answer[made] if made < len(self.answer) else self.end
        chance = b"" if sampling.temperature == 0 else str(sampling.seed).encode()
        return LETTERS.next(chain.digest(chain.length), b"", chance)

    def _check(self, chain: Chain, landed: LandedKV, reuse: Reuse) -> None:
        try:
            check(self.layout, chain.length - 1, landed, reuse)
        except InvariantError as error:
            raise WrongKV(str(error)) from None
        if any(deviations(self.layout, chain, landed)):
            raise WrongKV(f"not the KV of these {landed.length} tokens")


def _likely(chain: Chain, length: int, token: int, top: int | None) -> Logprobs | None:
    """Of `token` after the first `length` tokens, when asked for."""
    return None if top is None else LETTERS.likely(chain.digest(length), b"", token, top)


def _prompt_logprobs(chain: Chain, tokens: Sequence[int], top: int | None) -> tuple[Logprobs | None, ...]:
    if top is None:
        return ()
    return (None, *(_likely(chain, at, tokens[at], top) for at in range(1, len(tokens))))
