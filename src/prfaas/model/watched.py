"""A child process of ours that is run to its end, with progress.

It knows processes and a log file; it does not know what a child does. The child's standard input is a pipe that ends
when we do, so that none outlives us if it looks.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

Progress = Callable[[str, float], None]
"""Called with what is being done and since how many seconds, about once a second."""


def watched(command: Sequence[str], log: Path, stage: str, progress: Progress) -> tuple[int, list[str]]:
    """Run `command` to its end, its output in `log`; its exit code and the lines that it said."""
    since = time.monotonic()
    progress(stage, 0.0)
    with log.open("wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
    try:
        while True:
            try:
                code = child.wait(timeout=1)
                break
            except subprocess.TimeoutExpired:
                progress(stage, time.monotonic() - since)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        if child.stdin:
            child.stdin.close()
    lines = log.read_text("utf-8", "replace").replace("\r", "\n").splitlines()
    return code, [line.strip() for line in lines if line.strip()]
