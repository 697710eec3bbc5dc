"""What work costs in the simulation is what the profile says."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prfaas.model.profile import Profile
from prfaas.model.profilefile import load_profile
from prfaas.sim.costs import PrefillNs, prefill_time

NAMES = ("paper-h200", "paper-h20", "h200-8-qwen3-235b")


@cache
def costed(name: str) -> tuple[Profile, PrefillNs]:
    profile = load_profile(name)
    return profile, prefill_time(profile)


@pytest.mark.parametrize("name", NAMES)
@given(st.integers(1, 200_000), st.integers(0, 200_000))
def test_prefill_takes_what_the_profile_says(name: str, uncached: int, cached: int) -> None:
    profile, cost = costed(name)
    assert cost(uncached, uncached + cached) == max(1, profile.prefill_ns(uncached, uncached + cached))
