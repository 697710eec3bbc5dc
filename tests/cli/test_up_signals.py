"""`prfaas up` as a process: Ctrl-C, SIGTERM, kill -9, a failing start; with real processes as stand-ins."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

DRIVER = str(Path(__file__).with_name("updriver.py"))
NAMES = ("home", "far", "p0", "d0", "f0")
TOPOLOGY = """
model: tiny-hybrid
clusters:
  home: {kind: pd, listen: "127.0.0.1:%d", nodes: [{name: p0, role: prefill}, {name: d0, role: decode}]}
  far: {kind: prfaas, nodes: [{name: f0, role: prefill}]}
links: [{from: far, to: home, bandwidth: 1Gbps, rtt: 20ms}]
"""


class Up:
    """A running driver."""

    def __init__(self, directory: Path, *flags: str) -> None:
        from prfaas.cli.ports import free_ports

        self.directory = directory
        self.port = free_ports(1, set())[0]
        (directory / "t.yaml").write_text(TOPOLOGY % self.port)
        self.process = subprocess.Popen(
            [sys.executable, DRIVER, str(directory / "t.yaml"), str(directory), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # nohup has it ignored
            env={**os.environ, "XDG_STATE_HOME": str(directory / "state")},
        )

    def until(self, wanted: str) -> str:
        """What it says up to the line with `wanted`."""
        assert self.process.stdout
        said = ""
        for line in self.process.stdout:
            said += line
            if wanted in line:
                return said
        raise AssertionError(f"ended without {wanted!r}: {said}")

    def children(self) -> list[int]:
        """A pidfd of each child that was ever started; readable when that process has ended."""
        pids = [int(line) for name in NAMES for line in (self.directory / f"{name}.pids").read_text().split()]
        return [os.pidfd_open(pid) for pid in pids]


def all_end(pidfds: list[int], timeout_s: float = 60.0) -> bool:
    try:
        return all(select.select([pidfd], [], [], timeout_s)[0] for pidfd in pidfds)
    finally:
        for pidfd in pidfds:
            os.close(pidfd)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path)
    yield running
    running.process.kill()
    running.process.communicate()


pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfd")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_everything(up: Up, number: signal.Signals) -> None:
    said = up.until("Ctrl-C ends all of it")
    assert f"http://127.0.0.1:{up.port}/v1" in said
    children = up.children()
    assert len(children) == len(NAMES)
    up.process.send_signal(number)
    rest, _ = up.process.communicate(timeout=100)
    assert up.process.returncode == 0
    assert "All programs have ended." in rest
    assert all_end(children, 0)


@pytest.mark.slow
def test_children_end_when_up_is_killed(up: Up) -> None:
    up.until("Ctrl-C ends all of it")
    children = up.children()
    assert len(children) == len(NAMES)
    up.process.kill()
    up.process.wait(timeout=100)
    assert all_end(children)


@pytest.mark.slow
def test_stubborn_children_end_when_up_is_killed(tmp_path: Path) -> None:
    stubborn = Up(tmp_path, "--stubborn")
    stubborn.until("Ctrl-C ends all of it")
    children = stubborn.children()
    stubborn.process.kill()
    stubborn.process.communicate(timeout=100)
    assert all_end(children)


@pytest.mark.slow
def test_a_failing_start_exits_1_with_the_last_words(tmp_path: Path) -> None:
    failing = Up(tmp_path, "--exit", "7")
    said, _ = failing.process.communicate(timeout=100)
    assert failing.process.returncode == 1
    assert "ended (exit code 7) while starting" in said
    assert "the stand-in's last words" in said
