"""The lifeline within one process; test_up_signals has it with processes that are killed."""

from __future__ import annotations

import os
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
