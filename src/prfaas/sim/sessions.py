"""Closed-loop users: each asks, waits for the whole answer, thinks, and asks again with all that was said before.

It knows times, lengths and blocks; it does not know clusters. Who is answered slowly asks less, as people do.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from prfaas.sim.arrivals import SECOND_NS, Arrival, Draw
from prfaas.sim.request import Request

ROOM = 1 << 24
"""Blocks of one conversation, at most, so that ids of different ones differ."""


class Sessions:
    """`users` of them. A conversation begins with a drawn prompt and has `turns` turns on average; each further turn
    adds the answer before it and `adds` tokens on average. No prompt is longer than `most`: then it begins anew."""

    def __init__(
        self,
        users: int,
        think_s: float,
        turns: float,
        adds: float,
        block_tokens: int,
        most: int,
        draw: Draw,
        chance: Random,
    ) -> None:
        self.users = users
        self._think_s, self._turns, self._adds = think_s, turns, adds
        self._block, self._most = block_tokens, most
        self._draw, self._chance = draw, chance
        self._conversation = [0] * users
        self._tokens = [0] * users
        self._begun = 0

    def first(self) -> Iterator[Arrival]:
        """The first turn of everybody, spread over the time that people think."""
        starts = sorted((self._chance.random() * self._think_s, user) for user in range(self.users))
        for at_s, user in starts:
            yield self._anew(round(at_s * SECOND_NS), user)

    def after(self, now_ns: int, request: Request) -> Arrival:
        """What its user asks next."""
        chance = self._chance
        at_ns = now_ns + round(chance.expovariate(1 / self._think_s) * SECOND_NS)
        user = request.session
        tokens = self._tokens[user] + request.output + max(1, round(chance.expovariate(1 / self._adds)))
        if chance.random() * self._turns < 1 or tokens > self._most:
            return self._anew(at_ns, user)
        return self._turn(at_ns, user, tokens, self._draw()[1])

    def _anew(self, at_ns: int, user: int) -> Arrival:
        self._begun += 1
        self._conversation[user] = self._begun
        return self._turn(at_ns, user, *self._draw())

    def _turn(self, at_ns: int, user: int, tokens: int, output: int) -> Arrival:
        self._tokens[user] = tokens
        first = self._conversation[user] * ROOM
        return Arrival(at_ns, tokens, output, tuple(range(first, first + tokens // self._block)), user)
