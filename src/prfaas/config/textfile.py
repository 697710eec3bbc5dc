"""A file that a user named, read as text: bounded, UTF-8, and what is wrong with it in one line with its place."""

from __future__ import annotations

from pathlib import Path

from prfaas.core.errors import ConfigError


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """The text of `path`, which should be `what`, without a byte order mark. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            data = file.read(most_bytes + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; expected {what}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > most_bytes:
        most = f"{most_bytes >> 20} MiB" if most_bytes >= 1 << 20 else f"{most_bytes >> 10} KiB"
        raise ConfigError(f"{path}:1: larger than {most}; expected a smaller file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text") from None
