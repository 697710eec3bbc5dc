"""`prfaas up` itself: it leaves nothing behind, however it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import ROOT
from tests.e2e.system import System, alive, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_running(tmp_path: Path, number: signal.Signals) -> None:
    system = System.start(ROOT / "examples/two-clusters.yaml", tmp_path, "tiny-hybrid")
    pids = dict(system.pids)
    assert len(pids) == 5
    assert all(alive(pid) for pid in pids.values())
    code = system.stop(number)
    assert code == (-9 if number is signal.SIGKILL else 0)
    until("all programs have ended", lambda: not any(alive(pid) for pid in pids.values()))
