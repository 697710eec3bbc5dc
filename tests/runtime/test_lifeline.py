"""The lifeline within one process; test_up_signals has it with processes that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from prfaas.runtime import lifeline


def test_the_end_of_the_parent_is_noticed() -> None:
    reading, writing = os.pipe()
    noticed = threading.Event()
    environ = {lifeline.VARIABLE: str(reading), "OTHER": "kept"}
    thread = lifeline.watch(environ, noticed.set)
    assert thread is not None
    assert thread.daemon
    assert environ == {"OTHER": "kept"}
    os.write(writing, b"a sign of life")
    assert not noticed.wait(0.05)
    os.close(writing)
    assert noticed.wait(10)
    thread.join(10)
    os.close(reading)


def test_a_program_started_by_hand_has_none() -> None:
    assert lifeline.watch({}) is None
    assert lifeline.watch({lifeline.VARIABLE: "rope"}) is None


def test_a_grandchild_ends_with_its_parent() -> None:
    """The child is killed by SIGKILL; what it started, which has no lifeline, is gone soon after."""
    grandchild = "from prfaas.runtime import lifeline; lifeline.end_with_parent(0.01); print('up', flush=True); input()"
    child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}]).wait()"
    reading, writing = os.pipe()  # its reader sees the end when the last process that holds it has ended
    started = subprocess.Popen([sys.executable, "-c", child], stdout=writing, stdin=subprocess.PIPE)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.readline() == "up\n"
        started.kill()
        started.wait()
        assert said.read() == ""
    assert started.stdin is not None
    started.stdin.close()
