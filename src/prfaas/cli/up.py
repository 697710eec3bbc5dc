"""`prfaas up`: all of a topology on this machine, until Ctrl-C.

Everything that can be known to be wrong is found first, so that nothing is half started. Then the model is fetched, the
resolved topology is written to a private directory, and one program is started per head and per node.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from prfaas.cli.checkpoint import check_model
from prfaas.cli.engines import check_engines
from prfaas.cli.fetch import fetched
from prfaas.cli.fits import check_fits, had
from prfaas.cli.ports import check_free
from prfaas.cli.programs import CommandFactory, Program, localised, prfaas_command, programs_of
from prfaas.cli.rundir import make_run_directory
from prfaas.cli.supervise import Pace, StartFailed, Supervisor
from prfaas.cli.validate import described
from prfaas.cli.vllmserve import check_vllm
from prfaas.cli.welcome import welcome
from prfaas.config.checks import listeners
from prfaas.config.document import read_document
from prfaas.config.environment import read_environment
from prfaas.config.reader import Overrides, read_topology, write_topology
from prfaas.config.topology import Topology
from prfaas.core.errors import ConfigError
from prfaas.runtime.lifeline import end_with_parent_if_asked


@click.command("up")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", help="A name of the catalog or a directory, instead of the file's model.")
@click.option("--port", type=click.IntRange(1, 65535), help="The gateway's port, instead of the file's.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Where the programs' logs go.")
def command(file: Path, model: str | None, port: int | None, log_dir: Path | None) -> None:
    """Start all of the topology in FILE on this machine: one process per head and per node."""
    end_with_parent_if_asked(os.environ)
    topology = read_topology(file, Overrides(model, port))
    environ = dict(os.environ)
    document = read_document(file)
    try:
        environ[topology.security.secret_env] = read_environment(topology, environ, alone=True).secret
        check_engines(topology)
        check_vllm(topology, environ)
        check_fits(topology, None)
        _check_ports(topology, file)
        directory = had(topology, fetched)
        check_fits(topology, directory)
        check_model(topology, directory)
    except ConfigError as error:
        if model is not None and error.where == ("model",):
            raise
        raise document.located(error) from None
    topology = localised(topology, directory)
    _check_ports(topology, file)
    run = prepare(topology, environ, log_dir)
    click.echo(f"{file}: {described(topology)}")
    sys.exit(asyncio.run(stay_up(run, prfaas_command(run.file))))


@dataclass(frozen=True, slots=True)
class Run:
    """A topology with everything filled in, and where its run file and logs are."""

    topology: Topology
    environ: Mapping[str, str]
    file: Path
    logs: Path


def prepare(topology: Topology, environ: Mapping[str, str], log_dir: Path | None) -> Run:
    """Write the run file. Raises ConfigError when a directory cannot be written."""
    private = make_run_directory(environ)
    logs = private / "logs" if log_dir is None else log_dir.absolute()
    try:
        logs.mkdir(parents=True, exist_ok=True)
        write_topology(topology, private / "topology.yaml")
    except OSError as error:
        raise ConfigError(f"{error.filename or logs}: {error.strerror}; expected a directory to write in") from None
    return Run(topology, environ, private / "topology.yaml", logs)


async def stay_up(run: Run, start: CommandFactory, pace: Pace | None = None) -> int:
    """Supervise the programs of `run` until a signal; the exit code."""
    programs = programs_of(run.topology)
    width = max(len(program.name) for program in programs)

    def say(name: str, what: str) -> None:
        click.echo(f"  {name:<{width}}  {what}")

    supervisor = Supervisor(programs, start, run.environ, run.logs, say, pace)
    stop, since = asyncio.Event(), time.monotonic()

    def asked() -> None:
        if stop.is_set():
            supervisor.hurry()
            return
        stop.set()
        click.echo("\nEnding all programs (again to make them end at once) ...")

    def ready() -> None:
        click.echo(welcome(run.topology, time.monotonic() - since, _logs(supervisor, programs), run.environ, run.file))

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, asked)
    loop.add_signal_handler(signal.SIGTERM, asked)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup has it ignored
        loop.add_signal_handler(signal.SIGHUP, asked)
    try:
        await supervisor.run(stop, ready)
    except StartFailed as error:
        said = "".join(f"    {line}\n" for line in error.lines) or "    (nothing)\n"
        click.echo(
            f"{error}. All other programs were ended. The last it said ({error.log}):\n{said}", nl=False, err=True
        )
        return 1
    click.echo("All programs have ended.")
    return 0


def _logs(supervisor: Supervisor, programs: list[Program]) -> dict[str, Path]:
    return {program.name: supervisor.log(program) for program in programs}


def _check_ports(topology: Topology, file: Path) -> None:
    document = read_document(file)
    check_free((str(document.error(where, "")).rstrip(": "), endpoint) for where, endpoint, _ in listeners(topology))
