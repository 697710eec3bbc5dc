"""`Engine` without a model: wiring of device, prefills, batch and faults. It computes nothing itself."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

from prfaas.core.cache.layout import KVLayout
from prfaas.core.errors import ProtocolError, RequestError
from prfaas.engine.base import KVSink, Limits, Sampling, Token
from prfaas.engine.emulated import kept
from prfaas.engine.emulated.answer import Answer
from prfaas.engine.emulated.batch import Batch
from prfaas.engine.emulated.derive import Chain, Letters, deviations
from prfaas.engine.emulated.device import Device, closing
from prfaas.engine.emulated.faults import Faults
from prfaas.engine.emulated.prefill import HeldBack, Pace, Prefill, flipped
from prfaas.engine.landed import check
from prfaas.engine.reuse import Reuse, spec_of
from prfaas.model.profile import Profile
from prfaas.transport.base import LandedKV


class EmulatedEngine:
    """A node of `profile`'s hardware, `time_scale` times as slow. See `prfaas.engine.base.Engine` for the promises.

    `letters`: ids that answers are made of; with the same ones every emulated engine of `layout` gives the same greedy
    answers. All runs on the event loop; `faults` says what goes wrong. Without `overlap` KV is handed over when all of
    a prefill is computed, to show what layer by layer is worth.
    """

    def __init__(
        self,
        layout: KVLayout,
        limits: Limits,
        profile: Profile,
        letters: Letters,
        *,
        time_scale: float = 1.0,
        chunk_tokens: int = 2048,
        faults: Faults | None = None,
        overlap: bool = True,
    ) -> None:
        self.layout, self.limits = layout, replace(limits, chunk_tokens=chunk_tokens)
        self._spec = spec_of(layout, limits.block_tokens)
        self.faults = faults or Faults()
        self._profile, self._letters = profile, letters
        self._time_scale, self._chunk_tokens, self._overlap = time_scale, chunk_tokens, overlap
        self._device = Device()
        self._batch = Batch(self._device, profile, time_scale)
        self._running = 0
        self._order = 0

    @property
    def running(self) -> int:
        """Sequences in prefill or decode now."""
        return self._running

    async def start(self) -> None:
        """Ready at once, unless told otherwise."""
        await self._pace().point("start")

    async def close(self) -> None:
        """Stop all sequences: what still waits gets RequestError 503."""
        self._device.close()
        await self._batch.close(closing())

    async def prefill(self, tokens: Sequence[int], sink: KVSink, reuse: Reuse | None = None) -> None:
        """KV of `tokens` into `sink`, at the profile's pace. Raises what `put` raises; EmulatedFailure when told to."""
        self._check(tokens, self.limits.max_model_len - 1)
        reuse = reuse or Reuse(keeps=False)
        self._running += 1
        try:
            if self._overlap:
                await self._compute(Chain(tokens), len(tokens), sink, self._pace(), reuse)
                return
            held = HeldBack()
            await self._compute(Chain(tokens), len(tokens), held, self._pace(), reuse)
            held.release(sink)
        finally:
            self._running -= 1

    async def adopt(self, tokens: Sequence[int], landed: LandedKV, reuse: Reuse) -> None:
        """Keeps KV that is theirs. Raises ProtocolError, "wrong_kv", for any other."""
        chain = Chain(tokens)
        if await self._wrong(chain, landed, self._pace()):
            raise ProtocolError("wrong_kv", f"what landed is not the KV of these {len(tokens)} tokens")
        kept.adopt(reuse, chain, self._spec)

    async def generate(
        self, tokens: Sequence[int], sampling: Sampling, landed: LandedKV | None, reuse: Reuse | None = None
    ) -> AsyncGenerator[Token, None]:
        """Answer `tokens`. With KV that is not theirs it is another answer than without."""
        self._check(tokens, self.limits.max_model_len - (sampling.max_tokens > 0))
        if not tokens or sampling.max_tokens < (sampling.prompt_logprobs is None):
            raise RequestError("expected at least one prompt token and max_tokens of 1 or more", code="invalid_value")
        reuse = reuse or Reuse(keeps=False)
        self._running += 1
        answer: Answer | None = None
        chain, deviation = Chain(tokens), b""
        try:
            pace = self._pace()
            if landed is not None:
                deviation = await self._look(chain, landed, pace, reuse)
            elif len(tokens) > 1:
                await self._compute(chain, len(tokens) - 1, None, pace, reuse)
            await pace.point("decode:first")
            most = self.limits.max_model_len - len(tokens)
            answer = Answer(chain, sampling, self._letters, deviation, most, pace, self._batch.kick)
            await answer.score(tokens)
            self._batch.join(answer)
            while True:
                made = await answer.made.get()
                if isinstance(made, Exception):
                    raise made
                if made.finish is not None:
                    self._batch.leave(answer)
                yield made
                if made.finish is not None:
                    return
        finally:
            self._running -= 1
            if answer is not None:
                self._batch.leave(answer)
                answer.leave()
                if not deviation:
                    kept.leave(reuse, chain, self._spec, chain.length - 1)

    async def _compute(self, chain: Chain, length: int, sink: KVSink | None, pace: Pace, reuse: Reuse) -> None:
        """Leaves what was computed when it ends before its time, too."""
        kept.check(reuse, chain, self._spec)
        self._order += 1
        work = Prefill(
            self.layout,
            self._profile,
            self._time_scale,
            self._chunk_tokens,
            chain,
            length,
            sink,
            self._order,
            pace,
            self._device,
            reuse.tokens,
        )
        try:
            await work.run()
        finally:
            kept.leave(reuse, chain, self._spec, work.done)

    async def _look(self, chain: Chain, landed: LandedKV, pace: Pace, reuse: Reuse) -> bytes:
        """What is wrong with the KV that arrived: b"" when nothing is. What was kept is checked as ever."""
        check(self.layout, chain.length - 1, landed, reuse)
        kept.check(reuse, chain, self._spec, landed=True)
        await pace.point("landed")
        if pace.corrupt and landed.parts:
            key = next(iter(landed.parts))
            landed.parts[key] = bytearray(flipped(landed.parts[key]))
            pace.corrupt = False
        return await self._wrong(chain, landed, pace)

    async def _wrong(self, chain: Chain, landed: LandedKV, pace: Pace) -> bytes:
        """A digest of what of it is not the chain's: b"" when nothing is."""
        found = b""
        async with self._device.making:
            for piece in deviations(self.layout, chain, landed):
                found = piece or found
                await pace.breathe()
        return found

    def _pace(self) -> Pace:
        return Pace(self.faults, self._device)

    def _check(self, tokens: Sequence[int], longest: int) -> None:
        if len(tokens) > longest:
            raise RequestError(f"{len(tokens)} tokens do not fit; at most {longest} do", code="context_length_exceeded")
