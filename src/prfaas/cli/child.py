"""One child process: started with a lifeline and a log, asked to end, made to end.

It knows processes and pipes; it does not know what the program is or whether it should run again.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from prfaas.runtime import lifeline


class Child:
    """A running process. Its standard output and error are appended to its log; it ends when this process is gone."""

    def __init__(self, process: asyncio.subprocess.Process, rope: int) -> None:
        self._process = process
        self._rope = rope

    @classmethod
    async def start(cls, command: list[str], environ: Mapping[str, str], log: Path) -> Child:
        """Start `command`. Raises OSError when it cannot be started."""
        reading, writing = os.pipe()
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    env={**environ, lifeline.VARIABLE: str(reading), "PYTHONUNBUFFERED": "1"},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(reading,),
                    start_new_session=True,  # Ctrl-C in the terminal reaches the supervisor alone
                )
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        return cls(process, writing)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def ended(self) -> int:
        """Waits until it ended by itself; its exit code."""
        code = await self._process.wait()
        self._release()
        return code

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Ask it to end; after `grace_s`, or when `hurry` is set, make it end. Returns when it is gone."""
        with suppress(ProcessLookupError):
            self._process.terminate()
        waiting = asyncio.ensure_future(self._process.wait())
        hurried = asyncio.ensure_future(hurry.wait())
        try:
            await asyncio.wait({waiting, hurried}, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                with suppress(ProcessLookupError):
                    self._process.kill()
            await waiting
        finally:
            hurried.cancel()
            self._release()

    def _release(self) -> None:
        if self._rope >= 0:
            os.close(self._rope)
            self._rope = -1


def how(code: int) -> str:
    """An exit code in words."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
