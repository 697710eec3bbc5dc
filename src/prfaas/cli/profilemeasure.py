"""`prfaas profile measure`: the run at a terminal: progress, Ctrl-C, and what is written. It times nothing itself."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

import click

from prfaas.cli.profileplace import free_or_file
from prfaas.cli.profileshow import seconds
from prfaas.cli.progress import StepLine
from prfaas.config.echo import one_line
from prfaas.core.errors import ConfigError, RemoteError
from prfaas.measure.ask import Endpoint, discover, endpoint_url
from prfaas.measure.fit import profile_of_samples
from prfaas.measure.prompts import Prompts
from prfaas.measure.run import Measuring
from prfaas.measure.samples import Journal, Probe, Run, Settings, probes
from prfaas.model.profilefile import ProfileFile
from prfaas.runtime.client import make_session

INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says."""

    url: str
    out: Path
    model: str | None
    api_key: str | None
    settings: Settings
    timeout_s: float
    name: str | None
    source: str | None
    fresh: bool

    @property
    def journal(self) -> Path:
        """Where samples are kept until the profile is written."""
        return self.out.with_name(self.out.name + ".journal")

    @property
    def kept(self) -> Path:
        """Where they are afterwards."""
        return self.out.with_name(self.out.name + ".samples")


@dataclass(slots=True)
class Shown:
    """Progress on standard error."""

    repeats: int
    wanted: list[Probe]
    step: StepLine = field(default_factory=lambda: StepLine(sys.stderr))
    since: float = field(default_factory=time.monotonic)
    now: Probe | None = None

    def begun(self, probe: Probe, repeat: int) -> None:
        """A sample is being taken."""
        if probe != self.now:
            self.now, self.since, self.step = probe, time.monotonic(), StepLine(sys.stderr)
        self.tick()

    def tick(self) -> None:
        """Time goes by."""
        if (probe := self.now) is None:
            return
        place = f"{self.wanted.index(probe) + 1} of {len(self.wanted)}"
        self.step(f"{place}: {probe.text()}, {times(self.repeats)}", time.monotonic() - self.since)

    def settled(self, probe: Probe, times: list[int], why: str) -> None:
        """A probe is over."""
        self.step.done()
        self.now = None
        if why:
            click.echo(f"  stopped there: {why}", err=True)
        else:
            middle = median(times)
            spread = (max(times) - min(times)) / middle / 2
            click.echo(f"  {seconds(round(middle))}, give or take {spread:.1%}", err=True)


def ready(asked: Asked) -> None:
    """Raises ConfigError if samples cannot be kept beside the profile."""
    for path in (asked.journal, asked.kept):
        free_or_file(path)


def measured(asked: Asked) -> ProfileFile:
    """The profile of the endpoint. Raises click's Exit with 1 when the endpoint fails, 130 when interrupted.

    What was measured stays in the journal, and the same command goes on from there.
    """
    url = endpoint_url(asked.url)
    try:
        return asyncio.run(_measure(asked, url))
    except RemoteError as error:
        click.echo(f"{url}: {one_line(str(error))}", err=True)
        _kept(asked)
        raise click.exceptions.Exit(1) from None
    except KeyboardInterrupt:
        click.echo("\ninterrupted", err=True)
        _kept(asked)
        raise click.exceptions.Exit(INTERRUPTED) from None


async def _measure(asked: Asked, url: str) -> ProfileFile:
    async with make_session(asked.api_key) as session:
        served = await discover(session, url, asked.model, asked.timeout_s)
        if asked.fresh:
            _forget(asked.journal)
        journal = Journal(asked.journal, Run(url, served.model, asked.settings))
        try:
            wanted = list(probes(asked.settings))
            if journal.samples:
                click.echo(f"going on from {asked.journal}: {len(journal.samples)} samples", err=True)
            click.echo(
                f"{url}: {one_line(served.model)}, {len(wanted)} points, {times(asked.settings.repeats)} each", err=True
            )
            shown = Shown(asked.settings.repeats, wanted)
            endpoint = Endpoint(session, url, served, asked.timeout_s)
            prompts = Prompts(random.Random())
            ticking = asyncio.create_task(_ticking(shown))
            try:
                await Measuring(endpoint, asked.settings, journal, prompts, shown.begun, shown.settled).run()
            finally:
                ticking.cancel()
                shown.step.done()
        finally:
            journal.close()
    source = f"{asked.source}; " if asked.source else ""
    source += f"{one_line(served.model)} at {url}, measured by prfaas profile measure"
    said, prefill, decode = profile_of_samples(journal.samples, asked.name or asked.out.stem, source, date.today())
    click.echo(f"prefill: {prefill.text()}\ndecode: {decode.text()}", err=True)
    return said


def finish(asked: Asked) -> None:
    """The profile is written: the samples are kept beside it, and the next run begins anew."""
    try:
        asked.journal.replace(asked.kept)
    except OSError as error:
        raise ConfigError(f"{asked.journal}: cannot be renamed: {error.strerror}") from None
    click.echo(f"the samples are kept in {asked.kept}", err=True)


def times(count: int) -> str:
    """For people."""
    return "once" if count == 1 else f"{count} times"


async def _ticking(shown: Shown) -> None:
    while True:
        await asyncio.sleep(1)
        shown.tick()


def _kept(asked: Asked) -> None:
    if asked.journal.exists():
        count = asked.journal.read_bytes().count(b'"kind":"sample"')
        without = " without --fresh" if asked.fresh else ""
        kept = "1 sample is" if count == 1 else f"{count} samples are"
        click.echo(f"{kept} kept in {asked.journal}; the same command{without} goes on from there", err=True)


def _forget(journal: Path) -> None:
    """Once the endpoint has answered: a wrong URL costs no samples."""
    try:
        journal.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{journal}: cannot be removed: {error.strerror}") from None
