"""An engine without a model: KV and tokens are derived from the prompt, so that wrong or incomplete KV is noticed.

It knows `engine.base` and nothing of any transport. It computes in no time; a test decides where it waits or fails. Its
cache has all kinds of parts: rows of every token, rows of a window, and a state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from hashlib import blake2b

from prfaas.core.cache.layout import KVLayout, Part, PartKind
from prfaas.core.transfer.extent import Extent, needed
from prfaas.engine.base import NO_TOKEN, KVSink, Limits, Logprobs, Sampling, Token
from prfaas.transport.base import LandedKV

PARTS = (
    Part(0, "k", PartKind.TOKENS, (2, 8), "uint8"),
    Part(0, "v", PartKind.TOKENS, (2, 4), "uint8"),
    Part(1, "k", PartKind.WINDOW, (1, 8), "uint8", window=10),
    Part(2, "state", PartKind.STATE, (4, 16), "uint8"),
)
PRINTABLE = range(0x20, 0x7F)


class WrongKV(Exception):
    """What landed is not the KV of the prompt."""


async def _go_on(_step: int) -> None:
    """No wait."""


class DerivedEngine:
    """`answer`: the ids of every answer, before an end mark; None derives printable ids from all tokens so far.

    `before_chunk(start)` and `before_token(index)` are awaited before a prefill chunk and before each token: a test may
    wait or raise there. `seen` counts what was called.
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
        self.before_start: Callable[[int], Awaitable[None]] = _go_on
        self.seen = {"prefill": 0, "landed": 0, "alone": 0}
        self.running = 0
        self._chunk_tokens = chunk_tokens

    async def start(self) -> None:
        """Ready at once, unless `before_start` waits."""
        await self.before_start(0)

    async def close(self) -> None:
        """Nothing to free."""

    async def prefill(self, tokens: Sequence[int], sink: KVSink) -> None:
        """Rows chunk by chunk, layer by layer, the state at the end."""
        self.seen["prefill"] += 1
        self.running += 1
        try:
            wanted = {(e.layer, e.part): e for e in needed(self.layout, len(tokens))}
            chain = _chain(tokens)
            for start in range(0, len(tokens), self._chunk_tokens):
                await self.before_chunk(start)
                await asyncio.sleep(0)
                stop = min(start + self._chunk_tokens, len(tokens))
                for part in self.layout.parts:
                    if part.kind is PartKind.STATE:
                        if stop == len(tokens):
                            sink.put(wanted[part.layer, part.name], memoryview(_rows(part, chain, 0, stop)))
                        continue
                    first = max(start, wanted[part.layer, part.name].start)
                    if first < stop:
                        extent = Extent(part.layer, part.name, first, stop, (0, part.shape[0]))
                        sink.put(extent, memoryview(_rows(part, chain, first, stop)))
        finally:
            self.running -= 1

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, landed: LandedKV | None
    ) -> AsyncGenerator[Token, None]:
        """Raises WrongKV unless `landed` is exactly the KV of all tokens but the last."""
        self.seen["alone" if landed is None else "landed"] += 1
        self.running += 1
        try:
            if landed is not None:
                self._check(tokens[:-1], landed)
            made: list[int] = []
            prompt = _prompt_logprobs(tokens, sampling.prompt_logprobs)
            while True:
                await self.before_token(len(made))
                await asyncio.sleep(0)
                if sampling.max_tokens == 0:
                    yield Token(NO_TOKEN, "length", prompt=prompt)
                    return
                token = self._next(tokens, made, sampling)
                likely = _logprobs(_chain([*tokens, *made])[-1], token, sampling.logprobs)
                made.append(token)
                stopped = token in sampling.stop_ids
                finish = "stop" if stopped else "length" if len(made) == sampling.max_tokens else None
                yield Token(token, finish, likely, prompt)
                if finish is not None:
                    return
                prompt = ()
        finally:
            self.running -= 1

    def _next(self, tokens: Sequence[int], made: list[int], sampling: Sampling) -> int:
        if self.answer is not None:
            return self.answer[len(made)] if len(made) < len(self.answer) else self.end
        seed = 0 if sampling.temperature == 0 else (sampling.seed or 0)
        digest = _chain([*tokens, *made, seed % 251])[-1]
        return PRINTABLE[digest[0] % len(PRINTABLE)]

    def _check(self, tokens: Sequence[int], landed: LandedKV) -> None:
        if landed.length != len(tokens) or landed.held:
            raise WrongKV(f"KV of {landed.length} tokens, {landed.held} of them held, for {len(tokens)}")
        chain = _chain(tokens)
        for part in self.layout.parts:
            first = 0 if part.kind is PartKind.STATE else part.first_row(len(tokens))
            if landed.parts.get((part.layer, part.name)) != _rows(part, chain, first, len(tokens)):
                raise WrongKV(f"layer {part.layer} {part.name}")


def _logprobs(digest: bytes, token: int, top: int | None) -> Logprobs | None:
    """Made up from what came before: 20 likely ids, the best one being what greedy choice takes."""
    if top is None:
        return None
    first = blake2b(digest + bytes(4), digest_size=16).digest()[0]
    likely = [(PRINTABLE[(first + 7 * rank) % len(PRINTABLE)], -(rank + 1) / 4) for rank in range(20)]
    return Logprobs(dict(likely).get(token, -7.5), tuple(likely[:top]))


def _prompt_logprobs(tokens: Sequence[int], top: int | None) -> tuple[Logprobs | None, ...]:
    if top is None:
        return ()
    return (None, *map(_logprobs, _chain(tokens), tokens[1:], [top] * (len(tokens) - 1)))


def _chain(tokens: Sequence[int]) -> list[bytes]:
    """One digest a token, of all tokens up to it."""
    found, last = [], b""
    for token in tokens:
        last = blake2b(last + token.to_bytes(4, "little"), digest_size=16).digest()
        found.append(last)
    return found


def _rows(part: Part, chain: list[bytes], start: int, stop: int) -> bytearray:
    """The part's rows [start, stop), or its state after `stop` tokens."""
    which = range(stop - 1, stop) if part.kind is PartKind.STATE else range(start, stop)
    salt = f"{part.layer} {part.name}".encode()
    return bytearray().join(blake2b(chain[i] + salt, digest_size=part.unit_bytes).digest() for i in which)
