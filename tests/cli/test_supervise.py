"""The supervisor, with real processes that stand in for the programs."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prfaas.cli.ports import free_ports
from prfaas.cli.programs import Program
from prfaas.cli.supervise import Pace, StartFailed, Supervisor
from prfaas.config.units import Endpoint

STANDIN = str(Path(__file__).with_name("standin.py"))
QUICK = Pace(start_s=20.0, poll_s=0.02, grace_s=5.0, pause_s=0.01)


class Stage:
    """Two stand-ins under a supervisor, and what it said."""

    def __init__(self, logs: Path, pace: Pace = QUICK, **flags: list[str]) -> None:
        first, second = free_ports(2, set())
        self.programs = [
            Program("one", "node", "c", "one", Endpoint.at("127.0.0.1", first)),
            Program("two", "gateway", "c", None, Endpoint.at("127.0.0.1", second)),
        ]
        self.flags = flags
        self.said: list[tuple[str, str]] = []
        self.news = asyncio.Condition()
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.supervisor = Supervisor(self.programs, self.command, os.environ, logs, self.say, pace)

    def command(self, program: Program) -> list[str]:
        return [sys.executable, STANDIN, str(program.health.port), *self.flags.get(program.name, [])]

    def say(self, name: str, what: str) -> None:
        self.said.append((name, what))
        self.told = asyncio.ensure_future(self._tell())

    async def _tell(self) -> None:
        async with self.news:
            self.news.notify_all()

    async def run(self) -> None:
        await self.supervisor.run(self.stop, self.ready.set)

    async def until(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self.news:
            await self.news.wait_for(true)

    def pids(self, name: str) -> list[int]:
        found = (re.search(r"pid (\d+)", what) for who, what in self.said if who == name)
        return [int(match[1]) for match in found if match]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_all_start_and_all_end(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
    assert {who for who, what in stage.said if what.startswith("ready in")} == {"one", "two"}
    stage.stop.set()
    await running
    assert all(gone(stage.pids(name)[0]) for name in ("one", "two"))
    assert "stand-in" in (tmp_path / "one.log").read_text()


async def test_a_death_at_start_ends_everything_and_shows_the_log(tmp_path: Path) -> None:
    stage = Stage(tmp_path, two=["--exit", "3"])
    with pytest.raises(StartFailed, match=r"two ended \(exit code 3\) while starting") as failed:
        await stage.run()
    assert failed.value.lines[-1] == "the stand-in's last words"
    assert not stage.ready.is_set()
    assert all(gone(pid) for name in ("one", "two") for pid in stage.pids(name))


async def test_a_command_that_is_not_there_ends_everything(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.command = lambda program: [str(tmp_path / "missing")]  # type: ignore[method-assign]
    stage.supervisor = Supervisor(stage.programs, stage.command, os.environ, tmp_path, stage.say, QUICK)
    with pytest.raises(StartFailed, match="cannot be started"):
        await stage.run()


async def test_one_that_never_answers_is_given_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Pace(start_s=0.5, poll_s=0.02, grace_s=5.0), one=["--deaf"])
    with pytest.raises(StartFailed, match=r"one ended \(signal 15\) while starting"):
        await stage.run()
    assert ("one", "not ready after 0.5 s") in stage.said
    assert all(gone(pid) for name in ("one", "two") for pid in stage.pids(name))


async def test_a_later_death_is_reported_and_mended(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
    os.kill(stage.pids("one")[0], signal.SIGKILL)
    await stage.until(lambda: len([1 for who, what in stage.said if who == "one" and "ready" in what]) == 2)
    first, second = stage.pids("one")
    assert first != second
    assert any(who == "one" and "ended (signal 9); starting it again in 0.01 s" in what for who, what in stage.said)
    assert len(stage.pids("two")) == 1
    stage.stop.set()
    await running
    assert gone(second)


async def test_one_that_cannot_be_started_again_for_a_while_is_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
    (tmp_path / "one.log").rename(tmp_path / "old")
    (tmp_path / "one.log").mkdir()  # so that its log cannot be opened
    os.kill(stage.pids("one")[0], signal.SIGKILL)
    await stage.until(lambda: any(who == "one" and "cannot be started" in what for who, what in stage.said))
    (tmp_path / "one.log").rmdir()
    await stage.until(lambda: len([1 for who, what in stage.said if who == "one" and "ready" in what]) == 2)
    stage.stop.set()
    await running


async def test_pauses_grow_until_the_limit(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Pace(poll_s=0.02, pause_s=0.01, longest_pause_s=0.04))
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
    stage.flags["one"] = ["--exit", "1"]
    os.kill(stage.pids("one")[0], signal.SIGKILL)
    await stage.until(lambda: len(stage.pids("one")) == 6)
    stage.stop.set()
    await running
    pauses = [match[1] for _, what in stage.said if (match := re.search(r"again in ([\d.]+) s", what))]
    assert pauses[:5] == ["0.01", "0.02", "0.04", "0.04", "0.04"]


async def test_one_that_ignores_the_request_to_end_is_killed(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Pace(poll_s=0.02, grace_s=0.2), one=["--stubborn"])
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
        stage.stop.set()
        await running
    assert gone(stage.pids("one")[0])


async def test_hurry_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    stage = Stage(tmp_path, Pace(poll_s=0.02, grace_s=1000.0), one=["--stubborn"])
    running = asyncio.ensure_future(stage.run())
    async with asyncio.timeout(30):
        await stage.ready.wait()
        stage.stop.set()
        stage.supervisor.hurry()
        await running
    assert gone(stage.pids("one")[0])
