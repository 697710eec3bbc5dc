"""The private directory of one run of `prfaas up`: the resolved topology and the logs.

    $XDG_STATE_HOME/prfaas/runs/DATE-TIME-PID/    (else ~/.local/state/...)

It knows directories; it does not know what is in the files. The newest `KEPT` runs are kept.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path

from prfaas.core.errors import ConfigError

KEPT = 20


def make_run_directory(environ: Mapping[str, str]) -> Path:
    """A new directory that only its owner can read. Raises ConfigError."""
    base = environ.get("XDG_STATE_HOME") or ""
    runs = (Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state") / "prfaas" / "runs"
    made = runs / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        made.mkdir(mode=0o700, parents=True)
        _prune(runs)
    except OSError as error:
        raise ConfigError(f"{error.filename or runs}: {error.strerror}; expected a directory to write in") from None
    return made


def tail(log: Path, lines: int = 15, most_bytes: int = 16_384) -> list[str]:
    """The last lines of `log`; none when it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def _prune(runs: Path) -> None:
    for old in sorted(runs.iterdir())[:-KEPT]:
        if not _alive(old.name.rpartition("-")[2]):
            shutil.rmtree(old, ignore_errors=True)


def _alive(pid: str) -> bool:
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
