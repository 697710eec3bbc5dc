"""Progress of slow steps on a terminal: one line that is rewritten; in a log, one line a step.

It knows text and streams, nothing of what is being done.
"""

from __future__ import annotations

from typing import TextIO


class StepLine:
    """Shows `stage ... 12 s`. Call it as often as you like, then `done`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._stage = ""
        self._width = 0

    def __call__(self, stage: str, seconds: float) -> None:
        """`stage` has been going on for `seconds`."""
        if self._live:
            self._rewrite(f"{stage} ... {seconds:.0f} s")
        elif stage != self._stage:
            self._stream.write(f"{stage} ...\n")
        self._stage = stage
        self._stream.flush()

    def done(self) -> None:
        """The steps are over: what follows starts on a fresh line."""
        if self._live and self._width:
            self._stream.write("\n")
            self._stream.flush()
        self._width = 0

    def _rewrite(self, text: str) -> None:
        if self._stage and not text.startswith(self._stage):
            self._stream.write("\n")
            self._width = 0
        self._stream.write("\r" + text.ljust(self._width))
        self._width = len(text)
