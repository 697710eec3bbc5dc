"""What prefill and decode cost in the simulation: profiles as plain functions, with what was asked before kept.

It knows profiles and tokens; it does not know clusters.
"""

from __future__ import annotations

from collections.abc import Callable

from prfaas.model.profile import Profile

PrefillNs = Callable[[int, int], int]
"""Of uncached and context tokens."""

LAST = 1 << 12
"""Prefill times of parts of prompts that are remembered: a request is priced several times."""


MOST = 1 << 18
"""Values of whole prompts that are."""


def remembered(of: Callable[[int], int]) -> Callable[[int], int]:
    """`of`, with the values that were asked for kept, at most `MOST` of them."""
    known: dict[int, int] = {}
    kept = known.get

    def value(tokens: int) -> int:
        found = kept(tokens)
        if found is None:
            found = of(tokens)
            if len(known) < MOST:
                known[tokens] = found
        return found

    return value


def prefill_time(profile: Profile) -> PrefillNs:
    """The profile's times, never less than a nanosecond; those of whole prompts are remembered, of others the last.

    A profile that was measured without cached tokens only says of others what more the whole context takes than what is
    cached, and what a prompt of none takes: two times of whole prompts, which are remembered.
    """
    known: dict[int, int] = {}
    kept = known.get

    def missing(tokens: int) -> int:
        found = max(1, profile.prefill_ns(tokens, tokens))
        if len(known) < MOST:
            known[tokens] = found
        return found

    if len(profile.prefills) == 1:
        none_ns = profile.prefills[0][1].at(0).ns

        def grown_ns(uncached: int, context: int) -> int:
            whole = kept(context) or missing(context)
            if uncached == context:
                return whole
            cached = context - uncached
            return max(1, whole - (kept(cached) or missing(cached)) + none_ns)

        return grown_ns
    parts: dict[tuple[int, int], int] = {}

    def prefill_ns(uncached: int, context: int) -> int:
        if uncached == context:
            return kept(uncached) or missing(uncached)
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
