"""Where a plan is written to: looked at before anything is computed, so that no answer is lost to a bad path.

It knows paths; it does not know what is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prfaas.core.errors import ConfigError
from prfaas.plan.planfile import PlanFile, Trace


def read_files(file: Path, said: PlanFile) -> Iterator[Path]:
    """What the plan in `file` is read from, itself included; files of the package aside."""
    yield file
    for name in (said.model, *(cluster.profile for cluster in said.clusters.values())):
        path = Path(name)
        if path.is_dir():
            yield path / "config.json"
        elif path.is_file():
            yield path
    if isinstance(said.traffic.lengths, Trace):
        yield Path(said.traffic.lengths.file)


def check_file(path: Path, inputs: Iterable[Path], *, force: bool) -> None:
    """Raises ConfigError if `path` cannot be written, is one of `inputs`, or is there already without `force`."""
    if path.is_dir():
        raise ConfigError(f"{path}: is a directory; expected a file to write the topology to")
    if path.exists():
        if any(one.exists() and path.samefile(one) for one in inputs):
            raise ConfigError(f"{path}: the plan is read from it; expected another file to write the topology to")
        if not force:
            raise ConfigError(f"{path}: is there already; expected a new file, or --force")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: {path.parent} is no directory; expected a file to write the topology to")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path}: Permission denied; expected a file to write the topology to")


def check_directory(path: Path) -> None:
    """Raises ConfigError if `path` is no directory, nor one that can be made."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ConfigError(f"{path}: {there} is no directory; expected a directory for pictures")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{path}: Permission denied; expected a directory for pictures")
