"""Where snapshots are worth their room.

It knows lengths; it does not know blocks or what a pool holds. A request is most often resumed at its end (a
conversation goes on), or where another one left what it shares with it (a system prompt, a document, an edited turn).
So these get a snapshot; a few on the way are taken only for room that nothing better needs.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.spec import PoolSpec


@dataclass(frozen=True, slots=True)
class Placement:
    """`chunk_tokens`: prefill computes so many tokens at a time, and has the state between; `spare`: so many of these
    places a request may have, at most. They are thinned by leaving out every other one, so that requests with a common
    prefix choose the same places in it, and a long prompt costs no more than a short one. `worth`: an end at which a
    snapshot saves fewer tokens than this share of what would fit in its room is as little wanted as those."""

    chunk_tokens: int = 8192
    spare: int = 4
    worth: float = 0.2

    def lengths(self, spec: PoolSpec, grant: Grant, prompt: int, total: int) -> tuple[list[int], list[int]]:
        """Lengths in tokens for `PrefixPool.end`: its `snapshots`, most wanted first, and its `spare`.

        `prompt`: tokens of the prompt; `total`: with those that were made, as far as their blocks are in the chain.
        The end of the turn, the end of the prompt (less one token, so that the same prompt again finds it) and the
        place where the request left what was stored.
        """
        every = spec.snapshot_tokens
        first = grant.cached_tokens
        shared = grant.shared_tokens - grant.shared_tokens % every
        wanted = [shared] if shared > first else []
        short: list[int] = []
        least = self.worth * spec.snapshot_blocks * spec.block_tokens
        for length in (prompt - 1, total):
            stop = length - length % every
            if stop > first and stop not in wanted and stop not in short:
                (wanted if stop >= least else short).append(stop)
        wanted.reverse()
        step = -(-self.chunk_tokens // every) * every
        last = prompt - 1
        while last // step - first // step > self.spare:
            step *= 2
        places = range(last - last % step, first, -step)
        return wanted, short[::-1] + [place for place in places if place not in wanted and place not in short]
