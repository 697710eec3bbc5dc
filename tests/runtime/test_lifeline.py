"""The lifeline within one process; test_up_signals has it with processes that are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

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
    grandchild = (
        "from prfaas.runtime import lifeline; lifeline.end_with_parent(poll_s=0.01); print('up', flush=True); input()"
    )
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


def test_a_program_that_was_asked_to_ends_in_good_order_with_its_parent() -> None:
    """As `make up` asks of `prfaas up`, when make itself is killed."""
    program = (
        "import os, signal, sys, time; from prfaas.runtime import lifeline;"
        "signal.signal(signal.SIGTERM, lambda *_: (print('in good order', flush=True), os._exit(0)));"
        "lifeline.end_with_parent_if_asked(os.environ); assert lifeline.WITH_PARENT not in os.environ;"
        "print('up', flush=True); time.sleep(60)"
    )
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {program!r}]).wait()"
    reading, writing = os.pipe()
    environ = {**os.environ, lifeline.WITH_PARENT: "1"}
    started = subprocess.Popen([sys.executable, "-c", parent], stdout=writing, env=environ)
    os.close(writing)
    with os.fdopen(reading) as said:
        assert said.readline() == "up\n"
        started.kill()
        started.wait()
        assert said.read() == "in good order\n"


def test_make_asks_it_of_up() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    ups = [line for line in makefile.splitlines() if "/prfaas up " in line]
    assert len(ups) == 2
    assert all(line.startswith(f"\t@{lifeline.WITH_PARENT}=1 ") for line in ups)
