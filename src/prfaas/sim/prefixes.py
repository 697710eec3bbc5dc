"""The prefix cache of one simulated cluster: `core`'s pool, fed with what is prefilled there and what arrives.

It knows requests and their blocks; what can be resumed, where snapshots are taken and what goes for room is `core`'s.
What is prefilled for another cluster stays in transfer blocks until it has landed there or its lease ends; where it
will land, room is taken, and the prefix that it continues is held, from the moment its prefill begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prfaas.core.cache.grants import Grant
from prfaas.core.cache.prefixes import PrefixPool
from prfaas.core.cache.snapshots import Placement
from prfaas.core.cache.spec import PoolSpec
from prfaas.core.cache.tiers import TieredPool
from prfaas.sim.request import Request


@dataclass(frozen=True, slots=True)
class HostSetup:
    """The host tier of a cluster: `blocks` of `block_bytes` each, and `bps`, what the host link of each of its nodes
    carries."""

    blocks: int
    block_bytes: int
    bps: int


@dataclass(frozen=True, slots=True)
class CacheSetup:
    """`blocks`: how many blocks a cluster has for its prefixes and for what it computes. `lease_ns`: how long it keeps
    KV that has not landed where it is sent. `host`: its second tier, None: none (`sim.tiers`)."""

    spec: PoolSpec
    blocks: int
    lease_ns: int = 600 * 10**9
    host: HostSetup | None = None


class Prefixes:
    """One cluster's. The last token of a prompt is always computed. What is to land here has its own number, below 0,
    so that the same request may be prefilled here meanwhile. `chunk_tokens`: of prefill, None: whole prompts.
    `wait_ns`: how long what the last one resumes from takes to come, before its prefill begins; `fetches`: whether the
    next one waits for what would have to come."""

    def __init__(self, setup: CacheSetup, chunk_tokens: int | None = None) -> None:
        self.pool: PrefixPool | TieredPool = PrefixPool(setup.spec, setup.blocks)
        self.wait_ns = 0
        self.fetches = True
        self._spec = setup.spec
        self._size = setup.spec.block_tokens
        self._lease_ns = setup.lease_ns
        self._placement = Placement() if chunk_tokens is None else Placement(chunk_tokens)
        self._grants: dict[int, Grant] = {}

    def usable(self, blocks: tuple[int, ...], tokens: int) -> int:
        """Tokens that need not be computed."""
        return self.pool.usable(blocks, tokens - 1)

    def fetch_ns(self, blocks: tuple[int, ...], tokens: int) -> int:
        """How long what is usable would take to come."""
        return 0

    def near(self, blocks: tuple[int, ...], tokens: int) -> int:
        """Tokens that need not be computed, nor come from elsewhere first."""
        return self.usable(blocks, tokens)

    def begin(self, request: Request) -> int:
        """It is prefilled here from now on: tokens that need not be computed. Where there is no room for it, none, and
        nothing of it will be kept."""
        return self._begin(request.number, request)

    def reach(self, request: Request, tokens: int) -> None:
        """Its first `tokens` tokens are computed: a chunk has ended there."""
        grant = self._grants.get(request.number)
        if grant is not None:
            stops, spare = self._placement.lengths(self._spec, grant, request.tokens, request.tokens)
            found = ([stop for stop in one if stop <= tokens] for one in (stops, spare))
            self.pool.progress(request.number, request.blocks, tokens, *found)

    def end(self, request: Request) -> None:
        """It was prefilled, for this cluster."""
        grant = self._grants.pop(request.number, None)
        if grant is not None:
            stops, spare = self._placement.lengths(self._spec, grant, request.tokens, request.tokens)
            self.pool.end(request.number, request.blocks, request.tokens, stops, spare)

    def ship(self, now_ns: int, request: Request) -> None:
        """It was prefilled, for another cluster."""
        grant = self._grants.pop(request.number, None)
        if grant is not None:
            stops, spare = self._placement.lengths(self._spec, grant, request.tokens, request.tokens)
            lease_ns = now_ns + self._lease_ns
            self.pool.ship(request.number, request.blocks, request.tokens, lease_ns, stops, spare)

    def landed(self, request: Request) -> None:
        """What was shipped is where it was sent, or not wanted there any more."""
        self.pool.acknowledge(request.number)

    def expire(self, now_ns: int) -> list[int]:
        """Numbers of requests whose lease has ended."""
        return [number for number in self.pool.expire(now_ns) if isinstance(number, int)]

    def drop(self, request: Request) -> None:
        """Its prefill was aborted."""
        if self._grants.pop(request.number, None) is not None:
            self.pool.drop(request.number)

    def expect(self, request: Request) -> int:
        """It is prefilled elsewhere and will land here: tokens that need not be sent. Where there is no room for it,
        none, and nothing of it will be kept."""
        return self._begin(-1 - request.number, request)

    def receive(self, request: Request) -> None:
        """It has landed. Of its states the one at its end was sent."""
        number = -1 - request.number
        grant = self._grants.pop(number, None)
        if grant is None:
            return
        stops, spare = self._placement.lengths(self._spec, grant, request.tokens, request.tokens)
        last = max([0, *stops, *spare])
        self.pool.end(
            number,
            request.blocks,
            request.tokens,
            [stop for stop in stops if stop == last],
            [stop for stop in spare if stop == last],
        )

    def give_up(self, request: Request) -> None:
        """It will not land."""
        number = -1 - request.number
        if self._grants.pop(number, None) is not None:
            self.pool.drop(number)

    def take(self, request: Request, had: int, length: int) -> None:
        """Of a prefix of it, `length` tokens, what is beyond `had` was copied here. Of no use where `had` tokens are
        not there any more."""
        if self.pool.usable(request.blocks, had) == had:
            self._insert(request.blocks, length, [length] if length % self._spec.snapshot_tokens == 0 else [])

    def _begin(self, number: int, request: Request) -> int:
        chain, tokens = request.blocks, request.tokens
        if len(chain) * self._size == tokens:  # the last token is computed, so its block is not resumed
            chain = chain[:-1]
        grant = self._grant(number, chain, tokens)
        if grant is None:
            return 0
        self._grants[number] = grant
        return grant.cached_tokens

    def _grant(self, number: int, chain: Sequence[int], tokens: int) -> Grant | None:
        return self.pool.begin(number, chain, tokens)

    def _insert(self, chain: Sequence[int], tokens: int, snapshots: Sequence[int]) -> None:
        assert isinstance(self.pool, PrefixPool)
        self.pool.insert(chain, tokens, snapshots)
