"""Keeps a set of programs running: starts them, tells when each is ready, restarts what dies, ends all together.

It knows processes, their health and the order of things; it does not know topologies or models. While the set is
starting a death is final (`StartFailed`); later it is reported and the program is started again, after a growing pause.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from prfaas.cli.child import Child, how
from prfaas.cli.programs import CommandFactory, Program
from prfaas.cli.rundir import tail
from prfaas.core.errors import PrfaasError

Say = Callable[[str, str], None]
"""Called with a program's name and what happened to it."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things may take, in seconds. A pause doubles from `pause_s` to `longest_pause_s`; it starts anew for a
    program that was ready for `steady_s`."""

    start_s: float = 300.0
    poll_s: float = 0.1
    grace_s: float = 10.0
    pause_s: float = 0.5
    longest_pause_s: float = 30.0
    steady_s: float = 60.0


class StartFailed(PrfaasError):
    """A program did not become ready. `lines` are the last of its log."""

    def __init__(self, program: Program, what: str, log: Path) -> None:
        super().__init__(f"{program.name} {what}")
        self.log = log
        self.lines = tail(log)


class Supervisor:
    """Programs that are started, watched and ended together. Made and run on one event loop, once."""

    def __init__(
        self,
        programs: Sequence[Program],
        command: CommandFactory,
        environ: Mapping[str, str],
        logs: Path,
        say: Say,
        pace: Pace | None = None,
    ) -> None:
        self._programs = programs
        self._command = command
        self._environ = environ
        self._logs = logs
        self._say = say
        self._pace = pace or Pace()
        self._children: dict[str, Child] = {}
        self._starting = {program.name for program in programs}
        self._hurry = asyncio.Event()

    def log(self, program: Program) -> Path:
        """Where its output goes."""
        return self._logs / f"{program.name}.log"

    def hurry(self) -> None:
        """What is being ended, ends now."""
        self._hurry.set()

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Start all, call `ready` once all are, keep them running until `stop`. Returns when all have ended.

        Raises StartFailed, after all have ended, when one does not become ready.
        """
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as http:
            stopping = asyncio.ensure_future(stop.wait())
            tending = [asyncio.ensure_future(self._tend(program, http, ready)) for program in self._programs]
            try:
                await asyncio.wait({stopping, *tending}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                failed = [task.exception() for task in tending if task.done()]
                for task in (stopping, *tending):
                    task.cancel()
                await asyncio.gather(stopping, *tending, return_exceptions=True)
                children = list(self._children.values())
                await asyncio.gather(*(child.stop(self._pace.grace_s, self._hurry) for child in children))
            for error in failed:
                if error is not None:
                    raise error

    async def _tend(self, program: Program, http: aiohttp.ClientSession, ready: Callable[[], None]) -> None:
        """Run `program` again and again. Ends by StartFailed, or cancelled."""
        deaths = 0
        while True:
            try:
                code, ready_s = await self._one_life(program, http, ready)
                end = f"ended ({how(code)})"
            except OSError as error:
                end, ready_s = f"cannot be started ({error})", 0.0
            if self._starting:
                raise StartFailed(program, f"{end} while starting", self.log(program))
            deaths = 0 if ready_s >= self._pace.steady_s else deaths
            pause_s = min(self._pace.longest_pause_s, self._pace.pause_s * 2.0 ** min(deaths, 16))
            deaths += 1
            self._say(program.name, f"{end}; starting it again in {pause_s:g} s; log: {self.log(program)}")
            await asyncio.sleep(pause_s)

    async def _one_life(
        self, program: Program, http: aiohttp.ClientSession, ready: Callable[[], None]
    ) -> tuple[int, float]:
        """Start `program` and wait for its end: its exit code, and for how many seconds it was ready.

        Raises OSError when it cannot be started.
        """
        started = time.monotonic()
        child = await Child.start(self._command(program), self._environ, self.log(program))
        self._children[program.name] = child
        self._say(program.name, f"starting ({program.kind}, pid {child.pid})")
        code, ready_s = await self._until_ready(program, child, http), 0.0
        if code is None:
            served = time.monotonic()
            self._say(program.name, f"ready in {served - started:.1f} s")
            self._one_ready(program, ready)
            code = await child.ended()
            ready_s = time.monotonic() - served
        del self._children[program.name]
        return code, ready_s

    async def _until_ready(self, program: Program, child: Child, http: aiohttp.ClientSession) -> int | None:
        """None when it is ready; its exit code when it ended first, or was ended for taking too long."""
        give_up = time.monotonic() + self._pace.start_s
        ended = asyncio.ensure_future(child.ended())
        try:
            while not await _healthy(program, http):
                await asyncio.wait({ended}, timeout=self._pace.poll_s)
                if ended.done():
                    return ended.result()
                if time.monotonic() > give_up:
                    self._say(program.name, f"not ready after {self._pace.start_s:g} s")
                    await child.stop(self._pace.grace_s, self._hurry)
                    return await child.ended()
            return None
        finally:
            ended.cancel()

    def _one_ready(self, program: Program, ready: Callable[[], None]) -> None:
        if program.name in self._starting:
            self._starting.discard(program.name)
            if not self._starting:
                ready()


async def _healthy(program: Program, http: aiohttp.ClientSession) -> bool:
    try:
        async with http.get(f"http://{program.health}/health") as answer:
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
