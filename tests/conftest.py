"""What all tests share: seeds that are printed, and hypothesis profiles."""

from __future__ import annotations

import os
import random
import secrets

import pytest
from hypothesis import HealthCheck, settings

SEED = int(os.environ.get("PRFAAS_TEST_SEED") or secrets.randbits(32))

settings.register_profile("dev", max_examples=50, deadline=None, print_blob=True)
settings.register_profile(
    "ci", max_examples=200, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev"))


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded chance of this test's own; PRFAAS_TEST_SEED repeats it."""
    return random.Random(f"{SEED} {request.node.nodeid}")


def pytest_report_header() -> str:
    return f"seed: PRFAAS_TEST_SEED={SEED}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(f"seed: PRFAAS_TEST_SEED={SEED}")
