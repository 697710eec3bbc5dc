"""A checkpoint directory, before it is loaded: what is refused early, what it weighs, what names its contents.

It knows files: config.json, safetensors headers, free memory of this machine. It does not know models or caches.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import xxhash
from safetensors import SafetensorError, safe_open

from prfaas.core.errors import ConfigError

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_CONFIG_LIMIT_BYTES = 16 << 20
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory that was found whole. `weights`: numbers in all tensors; `config`: config.json as read; `dtypes`: as
    the files name them, F32 and so on."""

    directory: Path
    config: dict[str, Any]
    files: tuple[Path, ...]
    weights: int
    stored_bytes: int
    dtypes: frozenset[str] = frozenset()

    @property
    def family(self) -> str:
        """The model type, as config.json calls it."""
        return str(self.config.get("model_type", "unknown"))

    def revision(self) -> str:
        """Names config and weights by content: SHA-256, as hex, over config.json and each weights file's XXH3-128."""
        digest = hashlib.sha256((self.directory / "config.json").read_bytes())
        for path in self.files:
            content = xxhash.xxh3_128()
            with path.open("rb") as file:
                while block := file.read(_READ_BYTES):
                    content.update(block)
            digest.update(f"\0{path.name}\0{path.stat().st_size}\0{content.hexdigest()}".encode())
        return digest.hexdigest()


def open_checkpoint(directory: Path) -> Checkpoint:
    """Looks `directory` over without reading weights.

    Raises ConfigError: no directory, no config, missing or broken files.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: model directory not found")
    config = _json(directory / "config.json")
    files = _weight_files(directory)
    weights = stored_bytes = 0
    dtypes: set[str] = set()
    for path in files:
        try:
            # Headers only; and torch, which takes seconds to import, is not needed for them.
            with safe_open(path, framework="np") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - not a mapping
                    tensor = tensors.get_slice(name)
                    weights += prod(tensor.get_shape())
                    dtypes.add(tensor.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path}: not a whole safetensors file: {error}") from error
        stored_bytes += path.stat().st_size
    return Checkpoint(directory, config, files, weights, stored_bytes, frozenset(dtypes))


def require_memory(checkpoint: Checkpoint, needed_bytes: int, free_bytes: int, where: str) -> None:
    """Raises ConfigError with both sizes when `needed_bytes` of weights do not fit `free_bytes` of `where`."""
    if needed_bytes > free_bytes:
        raise ConfigError(
            f"{checkpoint.directory}: weights take {needed_bytes / 2**30:.2f} GiB,"
            f" only {free_bytes / 2**30:.2f} GiB of {where} memory is free"
        )


def free_host_bytes() -> int:
    """Memory that this machine can still give: MemAvailable where the kernel says it, else free pages."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _weight_files(directory: Path) -> tuple[Path, ...]:
    if (directory / _INDEX).is_file():
        shards = _json(directory / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not shards:
            raise ConfigError(f"{directory / _INDEX}: expected an object `weight_map` that names files")
        names = sorted({str(name) for name in shards.values()})
    else:
        names = [_SINGLE]
    for name in names:
        if Path(name).name != name:
            raise ConfigError(f"{directory / _INDEX}: {name!r} is not a plain file name")
        if not (directory / name).is_file():
            raise ConfigError(f"{directory / name}: weights file not found")
    return tuple(directory / name for name in names)


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_CONFIG_LIMIT_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if len(raw) > _CONFIG_LIMIT_BYTES:
        raise ConfigError(f"{path}: larger than {_CONFIG_LIMIT_BYTES >> 20} MiB")
    try:
        found = json.loads(raw)
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return found
