"""Profiles to files: whole or not at all, and only such as can be read again. How a file looks is `profilefile`'s."""

from __future__ import annotations

from pathlib import Path

from prfaas.core.errors import ConfigError
from prfaas.model.profilefile import ProfileFile, profile_text, read_profile_file


def part_of(path: Path) -> Path:
    """What `path` is called while it is being written."""
    return path.with_name(path.name + ".part")


def write_profile_file(said: ProfileFile, path: Path) -> None:
    """Write `said`, replacing what is there. Raises ConfigError when it cannot be written or would be refused."""
    part = part_of(path)
    try:
        part.write_text(profile_text(said), encoding="utf-8")
        try:
            read_profile_file(part)
        except ConfigError as error:
            part.unlink()
            raise ConfigError(f"{str(error).replace(str(part), str(path), 1)} (nothing was written)") from None
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
