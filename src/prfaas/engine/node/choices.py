"""The choices of one answer: each one's tokens become pieces of text, and they take turns.

It knows tokens, text and deadlines; it does not know HTTP, nor where KV came from.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

from prfaas.core.errors import InvariantError
from prfaas.engine.base import NO_TOKEN, Token
from prfaas.engine.node.asked import Asked
from prfaas.engine.node.deadline import within
from prfaas.engine.node.scored import scored_prompt, scored_token
from prfaas.model.text import LARGE, Text
from prfaas.runtime.tasks import to_its_end
from prfaas.wire.openai import Scored, Usage, usage

Tokens = AsyncGenerator[Token, None]


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to choice `index`. `finish` on a choice's last one: stop or length.

    `scored`: log-probabilities when they were asked for; those of an echoed prompt come with the first piece.
    """

    text: str
    finish: str | None = None
    scored: Sequence[Scored] | None = None
    index: int = 0


class Choice:
    """One choice, token by token, each within the deadline. `opening` is text that goes before: an echoed prompt."""

    def __init__(self, asked: Asked, index: int, tokens: Tokens, text: Text, opening: str | None) -> None:
        self._asked, self._index, self._tokens, self._text = asked, index, tokens, text
        self._opening = opening
        self._base = len(opening or "")
        self._stream = text.stream(asked.request.stops)
        self.generated = 0
        """Tokens so far, an end mark included."""

    async def next(self) -> Piece:
        """The next piece. Not after the last one. Raises RequestError, 504, and whatever the engine raises."""
        try:
            async with within(self._asked.deadline_ns):
                token = await anext(self._tokens)
        except StopAsyncIteration:
            raise InvariantError("the engine's answer ended without a reason") from None
        piece = self._piece(token)
        if self._opening is None:
            return piece
        opening, self._opening = self._opening, None
        if piece.scored is None:
            return replace(piece, text=opening + piece.text)
        async with within(self._asked.deadline_ns):
            work = self._asked.tokens, token.prompt
            prompt = await self._text.off_loop(lambda: scored_prompt(self._text, *work), LARGE)
        return replace(piece, text=opening + piece.text, scored=[*prompt, *piece.scored])

    async def aclose(self) -> None:
        """Stop the engine's work on it."""
        await self._tokens.aclose()

    def _piece(self, token: Token) -> Piece:
        told = self._asked.sampling.logprobs is not None
        if token.id == NO_TOKEN:
            return Piece("", token.finish, () if told else None, self._index)
        offset = self._base + self._stream.chars
        scored = (scored_token(self._text, token, offset),) if told else None
        self.generated += 1
        text = "" if token.finish == "stop" else self._stream.push(token.id)
        if self._stream.stopped:
            return Piece(text, "stop", scored, self._index)
        if token.finish is None:
            return Piece(text, None, scored, self._index)
        text += self._stream.finish()
        return Piece(text, "stop" if self._stream.stopped else token.finish, scored, self._index)


class Choices:
    """All choices of one request, `width` of them at once, in turns as their tokens come.

    `make(index)` makes a choice; `begun()` is called once each of them has a token, so that nothing need be kept for
    one that has yet to begin; `ended()` once the engine is done with all, before the last piece is told. `cached`:
    tokens of the prompt that were not computed for it.
    """

    def __init__(
        self,
        asked: Asked,
        make: Callable[[int], Choice],
        width: int,
        begun: Callable[[], None],
        ended: Callable[[], None],
        cached: int = 0,
    ) -> None:
        self._asked, self._make, self._begun, self._ended, self._cached = asked, make, begun, ended, cached
        self._total = asked.request.choices
        self._width = width
        self._made: list[Choice] = []
        self._fresh: set[int] = set(range(self._total))
        self._left = self._total
        self._pending: dict[asyncio.Task[Piece], int] = {}
        self._ready: list[Piece] = []

    @property
    def over(self) -> bool:
        """Whether every choice has ended."""
        return self._left == 0

    @property
    def generated(self) -> int:
        """Tokens so far, of all choices."""
        return sum(choice.generated for choice in self._made)

    @property
    def used(self) -> Usage:
        """Tokens in and out so far: the prompt once, the answers of all choices."""
        return usage(len(self._asked.tokens), self.generated, self._cached)

    async def next(self) -> Piece:
        """The next piece of any choice. Not when it is over. Raises what `Choice.next` raises, of any choice."""
        piece = await (self._next_alone() if self._width == 1 else self._next_of_many())
        if piece.finish is not None:
            self._left -= 1
            await self._made[piece.index].aclose()
        if piece.index in self._fresh:
            self._fresh.discard(piece.index)
            if not self._fresh:
                self._begun()
        if self.over:
            self._ended()
        return piece

    async def aclose(self) -> None:
        """Stop all work, whoever is cancelled meanwhile."""
        await to_its_end(self._stop())

    async def _stop(self) -> None:
        for task in self._pending:
            task.cancel()
        await asyncio.gather(*self._pending, return_exceptions=True)
        self._pending.clear()
        for choice in self._made:
            await choice.aclose()

    async def _next_alone(self) -> Piece:
        if len(self._made) == self._total - self._left:  # all that were made have ended
            self._made.append(self._make(len(self._made)))
        return await self._made[-1].next()

    async def _next_of_many(self) -> Piece:
        while not self._ready:
            self._start()
            done, _ = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=self._pending.__getitem__):
                index = self._pending.pop(task)
                piece = task.result()
                if piece.finish is None:
                    self._await(index)
                self._ready.append(piece)
        return self._ready.pop(0)

    def _start(self) -> None:
        while len(self._pending) < self._width and len(self._made) < self._total:
            index = len(self._made)
            self._made.append(self._make(index))
            self._await(index)

    def _await(self, index: int) -> None:
        task = asyncio.get_running_loop().create_task(self._made[index].next(), name=f"choice {index}")
        self._pending[task] = index
