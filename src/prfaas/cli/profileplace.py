"""Whether a file can be written where it is to be: asked before work that takes hours. Nothing stays."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from prfaas.core.errors import ConfigError
from prfaas.model.profilewrite import part_of


def not_there(out: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Raises ConfigError if `out` must not be replaced (one of `inputs` never), or cannot be written."""
    there = free_or_file(out)
    for path in inputs if there else ():
        if is_there(str(path)) and path.samefile(out):
            raise ConfigError(f"{out}: is what is read; expected another file to write")
    if there and not force:
        raise ConfigError(f"{out}: is there already; expected a new file, or --force")
    if not out.parent.is_dir():
        raise ConfigError(f"{out}: {out.parent} is no directory; expected one that exists")
    part = part_of(out)
    try:
        os.close(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o644))
        part.unlink()
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror}") from None


def free_or_file(path: Path) -> bool:
    """Whether there is a file. Raises ConfigError if something else is there, or none can be."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
    if stat.S_ISDIR(mode):
        raise ConfigError(f"{path}: is a directory; expected a file")
    if not stat.S_ISREG(mode):
        raise ConfigError(f"{path}: is no ordinary file; expected one, or none")
    return True


def is_there(path: str) -> bool:
    """Whether there is such a file; what cannot be a path is not there."""
    try:
        return Path(path).exists()
    except OSError:
        return False
