"""What is to be measured, and what was: probes, samples, and the journal that keeps them through an interruption.

    {"kind":"run","version":1,"url":"...","model":"...","settings":{...}}      the first line: whose samples these are
    {"kind":"sample","what":"prefill","x":1024,"y":0,"repeat":0,"of":1023,"over":0,"ns":440123456}
    {"kind":"stop","what":"prefill","x":131072,"y":0,"why":"HTTP 400: ..."}     no more from there on

It knows files and shapes; it does not know endpoints, nor how samples make a profile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from prfaas.config.echo import cut
from prfaas.core.errors import ConfigError

What = Literal["prefill", "decode"]
VERSION = 1


class Settings(Struct, frozen=True, kw_only=True):
    """What to measure. Tokens, except `repeats` of each point (the last is held out) and `steps` of each decode."""

    lengths: tuple[int, ...]
    cached: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    repeats: int = 4
    steps: int = 32


class Probe(Struct, frozen=True):
    """One point that is wanted: of prefill, `x` uncached tokens after `y` cached; of decode, `x` sequences of `y`."""

    what: What
    x: int
    y: int

    def beyond(self, other: Probe) -> bool:
        """Whether it asks for no less than `other`, so that it cannot work if that did not."""
        if self.what != other.what:
            return self.what == "decode" and other.y == 0 and self.y >= other.x
        if self.what == "prefill" and other.y == 0:
            return self.x + self.y >= other.x
        return self.x >= other.x and self.y >= other.y

    def text(self) -> str:
        """For people."""
        if self.what == "decode":
            return f"decode of {self.x} at once, {self.y} tokens each"
        return f"prefill of {self.x} tokens" + (f" after {self.y} cached" if self.y else "")


class Sample(Struct, frozen=True, tag="sample", tag_field="kind"):
    """`probe` as it was, for the `repeat`-th time: `of` uncached tokens or sequences, `over` cached ones or context."""

    what: What
    x: int
    y: int
    repeat: int
    of: int
    over: int
    ns: int

    @property
    def probe(self) -> Probe:
        """What was wanted."""
        return Probe(self.what, self.x, self.y)


class Stop(Struct, frozen=True, tag="stop", tag_field="kind"):
    """The probe did not work, and what is beyond it is not tried."""

    what: What
    x: int
    y: int
    why: str

    @property
    def probe(self) -> Probe:
        """What was wanted."""
        return Probe(self.what, self.x, self.y)


class Run(Struct, frozen=True, tag="run", tag_field="kind"):
    """Whose samples these are."""

    url: str
    model: str
    settings: Settings
    version: int = VERSION


def probes(settings: Settings) -> Iterator[Probe]:
    """In the order of measuring: from short to long, so that what does not fit is found last."""
    for length in settings.lengths:
        yield Probe("prefill", length, 0)
    for cached in settings.cached:
        for length in settings.lengths:
            yield Probe("prefill", length, cached)
    for context in settings.contexts:
        for batch in settings.batches:
            yield Probe("decode", batch, context)


class Journal:
    """The file of one run. What is there of the same run already is in `samples` and `stops`."""

    def __init__(self, path: Path, run: Run) -> None:
        """Raises ConfigError when the file is of another run (and has samples of it) or cannot be written."""
        self.path = path
        self.samples: list[Sample] = []
        self.stops: list[Stop] = []
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None
        try:
            whole = self._read(run)
            if whole is None:
                self._add(run)
            else:
                self._file.truncate(whole)
        except BaseException:
            self._file.close()
            raise

    def add(self, line: Sample | Stop) -> None:
        """Keep it, on the disk when this returns. Raises ConfigError when the disk is full."""
        self._add(line)
        (self.samples if isinstance(line, Sample) else self.stops).append(line)  # type: ignore[arg-type]

    def close(self) -> None:
        """No more comes. Without a sample there is nothing to go on from: no journal is left."""
        with contextlib.suppress(OSError):  # a full disk, of which `add` has told
            self._file.close()
        if not self.samples:
            self.path.unlink(missing_ok=True)

    def _add(self, line: Run | Sample | Stop) -> None:
        try:
            self._file.write(msgspec.json.encode(line) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise ConfigError(f"{self.path}: cannot be written: {error.strerror}") from None

    def _read(self, run: Run) -> int | None:
        """How many bytes are whole lines, None when no sample is there: a line that a crash cut off is dropped."""
        data, found = self._file.read(), None
        whole = data.rfind(b"\n") + 1
        for number, raw in enumerate(data[:whole].splitlines(), 1):
            try:
                line = msgspec.json.decode(raw, type=Run | Sample | Stop)
            except (msgspec.MsgspecError, UnicodeError):
                raise ConfigError(f"{self.path}:{number}: got {raw[:60]!r}; expected a line of a journal") from None
            if (number == 1) != isinstance(line, Run):
                raise ConfigError(f"{self.path}:{number}: expected a journal, whose first line says what is measured")
            if isinstance(line, Run):
                found = line
            elif isinstance(line, Sample):
                self.samples.append(line)
            else:
                self.stops.append(line)
        if found is None or not self.samples:
            self.stops.clear()
            self._file.truncate(0)
            return None
        self._check(found, run)
        return whole

    def _check(self, found: Run, run: Run) -> None:
        for name in ("version", "url", "model", "settings"):
            before, now = getattr(found, name), getattr(run, name)
            if before != now:
                shown = (
                    "with other settings"
                    if name == "settings"
                    else f"of {name} {cut(str(before))}, not {cut(str(now))}"
                )
                raise ConfigError(
                    f"{self.path}:1: a run {shown}; expected the same command to go on, or --fresh to begin anew"
                )
