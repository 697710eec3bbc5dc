"""What is simulated: clusters, links and costs in plain values, however they were described.

It knows counts and functions of length; it does not know files or plans (`fromplan`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prfaas.model.profile import Profile
from prfaas.sim.prefixes import CacheSetup

PrefillNs = Callable[[int, int], int]
"""Of uncached and context tokens."""


@dataclass(frozen=True, slots=True)
class ClusterSetup:
    """`prefill`: its prefill nodes. A PD cluster has decode nodes too, `batch` sequences and `memory` bytes of KV each
    (None: no bound), and gets the part `share` of all requests."""

    name: str
    prefill: int
    prefill_ns: PrefillNs
    decode: int = 0
    batch: int = 1
    memory: int | None = None
    step_ns: Callable[[int, int], int] = field(default=lambda batch, context: 1)
    flat_step_ns: int | None = None
    share: float = 0.0


@dataclass(frozen=True, slots=True)
class LinkSetup:
    """From a PrfaaS cluster to a PD cluster, by number; or back, for copies of prefixes. `loss`: the part of the line
    that retransmission costs."""

    source: int
    target: int
    bps: int
    rtt_ns: int
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Setup:
    """All of it. `kv_bytes`: of a sequence of so many tokens. `cache`: of each cluster; None: no prefix is kept."""

    clusters: tuple[ClusterSetup, ...]
    links: tuple[LinkSetup, ...]
    kv_bytes: Callable[[int], int]
    cache: CacheSetup | None = None

    @property
    def homes(self) -> tuple[int, ...]:
        """Numbers of the PD clusters."""
        return tuple(at for at, cluster in enumerate(self.clusters) if cluster.decode)


LAST = 1 << 12
"""Prefill times of parts of prompts that are remembered: a request is priced several times."""


def remembered(of: Callable[[int], int], most: int = 1 << 18) -> Callable[[int], int]:
    """`of`, with the values that were asked for kept, at most so many of them."""
    known: dict[int, int] = {}

    def value(tokens: int) -> int:
        found = known.get(tokens)
        if found is None:
            found = of(tokens)
            if len(known) < most:
                known[tokens] = found
        return found

    return value


def prefill_time(profile: Profile) -> PrefillNs:
    """The profile's times, never less than a nanosecond; those of whole prompts are remembered, of others the last."""
    whole = remembered(lambda tokens: max(1, profile.prefill_ns(tokens, tokens)))
    parts: dict[tuple[int, int], int] = {}

    def prefill_ns(uncached: int, context: int) -> int:
        if uncached == context:
            return whole(uncached)
        found = parts.get((uncached, context))
        if found is None:
            if len(parts) >= LAST:
                parts.clear()
            found = parts[uncached, context] = max(1, profile.prefill_ns(uncached, context))
        return found

    return prefill_ns


def flat_step(profile: Profile, batch: int) -> int | None:
    """A decode step's time where neither batch, up to `batch`, nor context matter; else None."""
    steps = {step for size, step in profile.decodes if not isinstance(step, int) or size <= batch}
    if len(profile.decodes) == 1 and len(steps) == 1 and profile.decodes[0][0] >= batch:
        step = profile.decodes[0][1]
        return step if isinstance(step, int) else None
    return None
