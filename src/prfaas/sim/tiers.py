"""The prefix cache of one simulated cluster with a host tier: what is in host memory comes back before prefill begins.

It knows moves and what they take; what is moved is `core`'s. The books of a move are closed at once, and who resumes
from the host waits as long as it takes: bytes over the bandwidth of its node's own host link, which has one transfer at
a time, since a node begins one prompt at a time. What is written to the host takes nobody's time.
"""

from __future__ import annotations

from collections.abc import Sequence

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.tiers import TieredPool
from prfaas.sim.prefixes import CacheSetup, Prefixes

SNAPSHOTS = 3
"""What a request wants at most that is not cold: the ends of turn and prompt, and where it left what was stored."""


class TieredPrefixes(Prefixes):
    """See `Prefixes`. `waited_ns`: all that prefill waited for the host."""

    def __init__(self, setup: CacheSetup, chunk_tokens: int | None = None) -> None:
        super().__init__(setup, chunk_tokens)
        assert setup.host is not None
        self._host = setup.host
        self.pool: TieredPool = TieredPool(setup.spec, setup.blocks, setup.host.blocks)
        self.waited_ns = 0

    def fetch_ns(self, blocks: tuple[int, ...], tokens: int) -> int:
        """See `Prefixes`."""
        gained = self.pool.fetched(blocks, tokens - 1)
        if not gained:
            return 0
        return self._takes_ns(gained // self._size + self._spec.snapshot_blocks)

    def near(self, blocks: tuple[int, ...], tokens: int) -> int:
        """See `Prefixes`."""
        return self.pool.near.usable(blocks, tokens - 1)

    def _takes_ns(self, blocks: int) -> int:
        return -(-blocks * self._host.block_bytes * 8 * 10**9 // self._host.bps)

    def _grant(self, number: int, chain: Sequence[int], tokens: int) -> Grant | None:
        before = self.pool.fetched_blocks
        fetch = self.fetches or number < 0
        grant = self.pool.begin(number, chain, tokens, snapshots=SNAPSHOTS, fetch=fetch)
        self._close()
        self.wait_ns = self._takes_ns(self.pool.fetched_blocks - before)
        if number >= 0:
            self.waited_ns += self.wait_ns
        return grant

    def _insert(self, chain: Sequence[int], tokens: int, snapshots: Sequence[int]) -> None:
        if self.pool.begin("copy", chain, tokens, snapshots=1) is not None:
            self._close()
            self.pool.end("copy", chain, tokens, snapshots)
        self._close()

    def _close(self) -> None:
        pool = self.pool
        while moves := pool.take_moves():
            for move in moves:
                pool.moved(move.number)
