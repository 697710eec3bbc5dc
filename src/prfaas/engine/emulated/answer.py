"""An answer under way: one lane of the batch, which makes a token a step.

It knows sampling, letters and the chain of tokens; it does not know the device or where KV came from.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence

from prfaas.engine.base import NO_TOKEN, Logprobs, Sampling, Token
from prfaas.engine.emulated.derive import Chain, Letters
from prfaas.engine.emulated.prefill import EmulatedFailure, Pace


class Answer:
    """`advance` puts a Token, or what went wrong, into `made`. `deviation`: what is wrong with the KV.

    It is b"" when nothing is. `most`: tokens that there is room for. `resume()` is called when a lane that stalled may
    go on.
    """

    def __init__(
        self,
        chain: Chain,
        sampling: Sampling,
        letters: Letters,
        deviation: bytes,
        most: int,
        pace: Pace,
        resume: Callable[[], None],
    ) -> None:
        self._chain, self._sampling, self._letters, self._deviation = chain, sampling, letters, deviation
        self._left = min(sampling.max_tokens, most)
        self._pace, self._resume = pace, resume
        self._count = 0
        self._stall: asyncio.TimerHandle | None = None
        self._prompt: tuple[Logprobs | None, ...] = ()
        self._seed = b""
        if sampling.temperature > 0:
            # A seed is any whole number of 64 bits; without one every answer is another one.
            self._seed = os.urandom(8) if sampling.seed is None else (sampling.seed % 2**64).to_bytes(8, "little")
        self.made: asyncio.Queue[Token | Exception] = asyncio.Queue()
        self.held = False

    @property
    def context(self) -> int:
        """Tokens so far."""
        return self._chain.length

    @property
    def factor(self) -> float:
        """How slow it is."""
        return self._pace.factor

    async def score(self, tokens: Sequence[int]) -> None:
        """The prompt's logprobs, if they are asked for; they come with the first token."""
        top = self._sampling.prompt_logprobs
        if top is None:
            return
        found: list[Logprobs | None] = [None]
        for at in range(1, len(tokens)):
            found.append(self._letters.likely(self._chain.digest(at), b"", tokens[at], top))
            await self._pace.breathe()
        self._prompt = tuple(found)

    def advance(self) -> None:
        """One token more, or one that is held up."""
        point = f"decode:token:{self._count}"
        struck = self._pace.faults.at(point)
        self._pace.factor *= struck.factor
        if struck.fail:
            self.made.put_nowait(EmulatedFailure(f"told to fail at {point}"))
            self.held = True
        elif struck.stall_ns != 0:
            self.held = True
            if struck.stall_ns is not None:
                loop = asyncio.get_running_loop()
                self._stall = loop.call_later(struck.stall_ns / 1e9, self._go_on, struck.wrong_token)
        else:
            self._make(struck.wrong_token)

    def break_off(self, why: Exception) -> None:
        """No more tokens come."""
        self.made.put_nowait(why)

    def leave(self) -> None:
        """Nobody waits for it any more."""
        if self._stall is not None:
            self._stall.cancel()

    def _go_on(self, wrong: bool) -> None:
        self.held = False
        self._make(wrong)
        self._resume()

    def _make(self, wrong: bool) -> None:
        if self._sampling.max_tokens == 0:
            self.made.put_nowait(Token(NO_TOKEN, "length", prompt=self._prompt))
            return
        digest = self._chain.digest(self._chain.length)
        deviation = self._deviation + (b"wrong" if wrong else b"")
        token = self._letters.next(digest, deviation, self._seed)
        top = self._sampling.logprobs
        likely = None if top is None else self._letters.likely(digest, deviation, token, top)
        self._chain.append(token)
        self._count += 1
        self._left -= 1
        finish = "stop" if token in self._sampling.stop_ids else "length" if self._left == 0 else None
        self.held = finish is not None
        self.made.put_nowait(Token(token, finish, likely, self._prompt))
        self._prompt = ()
