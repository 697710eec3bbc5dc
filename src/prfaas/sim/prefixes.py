"""The prefix cache of one simulated cluster: `core`'s pool, fed with what is prefilled there and what arrives.

It knows requests and their blocks; what can be resumed and what goes for room is the pool's.
"""

from __future__ import annotations

from dataclasses import dataclass

from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.spec import PoolSpec
from prfaas.sim.request import Request


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """`blocks`: how many blocks a cluster has for its prefixes and for what it computes."""

    spec: PoolSpec
    blocks: int


class Prefixes:
    """One cluster's. The last token of a prompt is always computed."""

    def __init__(self, setup: CacheSetup) -> None:
        self.pool = PrefixPool(setup.spec, setup.blocks)
        self._snapshot = setup.spec.snapshot_tokens
        self._shared: dict[int, int] = {}

    def usable(self, blocks: tuple[int, ...], tokens: int) -> int:
        """Tokens that need not be computed."""
        return self.pool.usable(blocks, tokens - 1)

    def begin(self, request: Request) -> None:
        """It is prefilled here from now on. Where there is no room for it, nothing of it will be kept."""
        grant = self.pool.begin(request.number, request.blocks, request.tokens)
        if grant is not None:
            self._shared[request.number] = grant.shared_tokens

    def end(self, request: Request) -> None:
        """It was prefilled: kept, with snapshots where it left what was known and at its end."""
        shared = self._shared.pop(request.number, None)
        if shared is None:
            return
        every = self._snapshot
        wanted = sorted({shared - shared % every, request.tokens - request.tokens % every} - {0})
        self.pool.end(request.number, request.blocks, request.tokens, wanted)

    def drop(self, request: Request) -> None:
        """Its prefill was aborted."""
        if self._shared.pop(request.number, None) is not None:
            self.pool.drop(request.number)

    def receive(self, request: Request) -> None:
        """Its KV came from elsewhere, and is kept too."""
        end = request.tokens - request.tokens % self._snapshot
        self.pool.insert(request.blocks, request.tokens, [end] if end else [])
